package publisher

import (
	"testing"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
)

const withCanary = `[{versions: {path: versions.json}}, {configMap: {name: app}}, {configMap: {name: app-canary, canary: true}}, {env: {path: e, envFrom: [{configMapRef: {name: app-canary, canary: true}}, {configMapRef: {name: app}}]}}]`

var appCanary = configMap("app-canary")

// putCanary is put with the annotation of a canary; "" is none.
func (e *env) putCanary(share string, pairs ...string) {
	e.Helper()
	e.objects.mu.Lock()
	e.objects.canaries[appCanary] = share
	e.objects.mu.Unlock()
	e.update(appCanary, pairs...)
}

// wantSome compares some files; "" is an empty or missing one.
func (e *env) wantSome(r binding.Request, pairs ...string) {
	e.Helper()
	files := e.mounts.files(r.Target)
	for i := 0; i < len(pairs); i += 2 {
		if files[pairs[i]] != pairs[i+1] {
			e.Errorf("%s is %q, want %q", pairs[i], files[pairs[i]], pairs[i+1])
		}
	}
}

// TestCanary: a canary exists only for the pods in its share: in a new volume, in a running one, after a restart and in a lost mount. Its keys
// and variables win while it exists.
func TestCanary(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1", "sources", withCanary)
		out, in := shares(r)
		stable := func() {
			e.Helper()
			e.wantSome(r, "a", "1", "b", "1", "e", "a=1\nb=1\n")
			if got := e.recordOf(r); got.Shown[appCanary].UID != "" || len(got.Absent) > 1 {
				e.Errorf("the record says %v", got)
			}
			e.wantCondition(ConditionCurrent)
		}
		replaced := func() {
			e.Helper()
			e.wantSome(r, "a", "canary", "b", "1", "e", "a=canary\nb=1\n")
			if got := e.recordOf(r); got.Shown[appCanary].UID == "" || len(got.Absent) > 0 {
				e.Errorf("the record says %v", got)
			}
			e.wantCondition(ConditionCurrent)
		}
		e.objects.put(configMap("app"), "a", "1", "b", "1")
		e.putCanary(out, "a", "canary")
		e.publish(r)
		stable()
		e.putCanary(in, "a", "canary")
		replaced()
		e.resume()
		replaced()
		e.mounts.vanish(r.Target)
		e.publish(r)
		replaced()
		e.putCanary(out, "a", "canary")
		stable()
		e.resume()
		stable()
		e.putCanary("100%", "a", "canary")
		replaced()
		e.putCanary("", "a", "canary") // a request that drops the annotation
		stable()
		e.putCanary("100%", "a", "canary")
		e.remove(appCanary)
		stable()
		if got := e.recordOf(r); len(got.Absent) > 0 {
			t.Errorf("after its end the record says %v", got)
		}
		e.wantEvents()
	})
}

// TestInvalidCanary: an invalid share, and an immutable canary, count as 0%, and are reported once for all pods of the node.
func TestInvalidCanary(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.putCanary("100%", "a", "canary")
		r, other := e.publishNew("v1", "sources", withCanary), e.request("v2", "sources", withCanary)
		e.publish(other)
		e.putCanary("ten", "a", "canary")
		e.wantSome(r, "a", "1")
		e.wantSome(other, "a", "1")
		e.putCanary("ten", "a", "canary-2")
		e.wantEvents(`InvalidCanary: ConfigMap "shop/app-canary" is a canary for no pod: the annotation refvol.dev/canary is "ten", which is not a percentage such as 10%`)
		e.unpublish(other)
		e.wantCondition(ConditionCurrent)
		e.putCanary("-1%", "a", "canary")
		e.wantEvents(`"-1%"`)
		e.putCanary("100%", "a", "canary")
		e.wantSome(r, "a", "canary")
		e.putCanary("-1%", "a", "canary") // once more, after it was right
		e.wantSome(r, "a", "1")
		e.wantEvents(`"-1%"`)
		e.putCanary("100%", "a", "canary")
		e.wantSome(r, "a", "canary")
		immutable := *e.objects.get(appCanary)
		immutable.Immutable = true
		e.objects.set(appCanary, func() { e.objects.objects[appCanary] = &immutable })
		e.settle()
		e.wantSome(r, "a", "1")
		e.wantEvents("the object is immutable, so its share could not change")
	})
}

// TestOlderCanary: after a restart, an older answer does not show a canary again that had gone.
func TestOlderCanary(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.putCanary("100%", "a", "canary")
		older := e.objects.get(appCanary)
		r := e.publishNew("v1", "sources", withCanary)
		e.putCanary("0%", "a", "canary")
		newest := e.objects.get(appCanary)
		e.halt()
		e.objects.set(appCanary, func() { e.objects.objects[appCanary] = older })
		e.resume()
		e.wantSome(r, "a", "1")
		e.wantCondition(failure.VolumeUpdateFailed, "older than what the files show")
		e.objects.set(appCanary, func() { e.objects.objects[appCanary] = newest })
		e.settle()
		e.wantCondition(ConditionCurrent)

		e.objects.failWith(appCanary, errFault) // unknown: a change of another object must not lose what is known of the canary
		e.restart()
		e.update(configMap("app"), "a", "2")
		e.wantSome(r, "a", "2")
		if got := e.recordOf(r).Absent[appCanary]; got != newest.Version {
			t.Errorf("the record says %v of the canary, want %v", got, newest.Version)
		}
	})
}

// TestCanaryGoesWhileOthersAreUnknown: the files of a canary stay until it is known what its keys hide. A newer absence is recorded meanwhile.
func TestCanaryGoesWhileOthersAreUnknown(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1", "b", "1")
		e.putCanary("100%", "a", "canary")
		r := e.publishNew("v1", "sources", "[{configMap: {name: app}}, {configMap: {name: app-canary, canary: true}}]")
		e.halt()
		e.objects.failWith(configMap("app"), errFault)
		e.putCanary("0%", "a", "canary")
		e.resume()
		e.wantSome(r, "a", "canary", "b", "1")
		e.putCanary("0%", "a", "canary-2")
		e.objects.failWith(configMap("app"), nil)
		e.updateApp(r, "a", "2", "b", "2")
		e.wantCondition(ConditionCurrent)

		e.halt()
		e.objects.failWith(configMap("app"), errFault)
		e.putCanary("0%", "a", "canary-3")
		e.resume()
		e.putCanary("0%", "a", "canary-4")
		if got, want := e.recordOf(r).Absent[appCanary], e.objects.get(appCanary).Version; got != want {
			t.Errorf("the record says %v, want %v", got, want)
		}
		e.wantSome(r, "a", "2", "b", "2")
	})
}
