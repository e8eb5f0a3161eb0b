package publisher

import "testing"

// TestNeverOlderAfterARestart: an API server that is catching up sends an older version to a process that knows only the volume. The files
// stay until something newer comes.
func TestNeverOlderAfterARestart(t *testing.T) {
	for _, strategy := range []string{"Atomic", "InPlace"} {
		t.Run(strategy, func(t *testing.T) {
			inBubble(t, func(e *env) {
				app := configMap("app")
				e.objects.put(app, "a", "1")
				older := e.objects.get(app)
				e.objects.put(app, "a", "2")
				r := e.request("v1", "configMap", "app", "writeStrategy", strategy)
				e.publish(r)
				e.halt()
				e.objects.set(app, func() { e.objects.objects[app] = older })
				e.restart()
				e.settle()
				e.wantFiles(r, "a", "2")
				e.publish(r) // as the kubelet does after its own restart
				e.wantFiles(r, "a", "2")
				e.objects.put(app, "a", "3")
				e.settle()
				e.wantFiles(r, "a", "3")
				e.unpublish(r)
			})
		})
	}
}

// TestAnOlderImmutableObjectIsReadAgain: an API server that is catching up sends an older immutable object, which nothing follows. It is read
// again at a resync.
func TestAnOlderImmutableObjectIsReadAgain(t *testing.T) {
	inBubble(t, func(e *env) {
		app := configMap("app")
		e.objects.put(app, "a", "1")
		older := e.objects.get(app)
		e.objects.put(app, "a", "2")
		r := e.request("v1")
		e.publish(r)
		e.halt()
		e.objects.put(app, "a", "3")
		e.objects.set(app, func() {
			e.objects.again[app], e.objects.objects[app] = e.objects.objects[app], older
		})
		e.restart()
		e.settle()
		e.wantFiles(r, "a", "2")
		after(2 * testResync)
		e.settle()
		e.wantFiles(r, "a", "3")
	})
}
