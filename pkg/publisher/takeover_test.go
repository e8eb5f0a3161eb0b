package publisher

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/volume"
)

// A volume's memory counts from the moment at which this process finds it, even if its pod or its objects cannot be read, so that nothing
// can write it.
func TestAVolumeTakenOverCounts(t *testing.T) {
	const size = 5
	for _, test := range []struct {
		name string
		// then restarts the publisher.
		then func(e *env, r binding.Request)
		want int64
	}{
		{"by its pod's spec", func(e *env, _ binding.Request) { e.restart() }, taken(size, 1)},
		{"not yet", func(e *env, _ binding.Request) { e.restartUnread() }, taken(size, 1)},
		{"by a publish", func(e *env, r binding.Request) {
			e.restartUnread()
			e.publish(r)
		}, taken(size, 1)},
		{"by a publish, and again", func(e *env, r binding.Request) {
			e.restartUnread()
			e.publish(r)
			e.restart()
		}, taken(size, 1)},
		{"when it could be read at the second try", func(e *env, _ binding.Request) {
			e.mounts.failAt("Open", errFault)
			e.restart()
			e.mounts.failAt("Open", nil)
			after(10 * time.Second)
		}, taken(size, 1)},
		{"with a lower limit", func(e *env, _ binding.Request) {
			e.opts.MaxVolumeSize = pageSize
			e.restart()
		}, taken(size, 1)},
		{"with the generation before, which goes soon", func(e *env, _ binding.Request) {
			e.objects.failWith(configMap("app"), nil)
			e.update(configMap("app"), "a", pages(size)+"x")
			e.objects.failWith(configMap("app"), manager.ErrNotSynced)
			e.restart()
		}, taken(size+1, 1)},
	} {
		inBubbleOf(t, test.name, func(e *env) {
			e.objects.put(configMap("app"), "a", pages(size))
			r := e.publishNew("v1")
			e.objects.failWith(configMap("app"), manager.ErrNotSynced)
			test.then(e, r)
			e.rest()
			e.wantUsed(test.want)
			e.publish(r)
			e.objects.failWith(configMap("app"), nil)
			e.objects.put(configMap("app"), "a", "")
			e.rest()
			e.wantUsed(taken(0, 1))
			e.end(r)
		})
	}
}

func TestRestoreUnmountsOnlyWhatNobodyWillUnpublish(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		known, orphan, waiting := e.request("v1"), e.request("v2"), e.request("v3")
		e.publish(known, orphan, waiting)
		e.halt()
		e.pods.remove(waiting)
		if err := os.RemoveAll(filepath.Join(e.opts.KubeletDir, "pods", string(orphan.Pod.UID))); err != nil {
			t.Fatal(err)
		}
		e.resume()
		if got := e.mounts.targets(); !slices.Equal(got, []string{known.Target, waiting.Target}) {
			t.Errorf("mounted are %v", got)
		}
		e.wantLines(1, "Unmounted a volume whose pod is gone", `volumeID="v2"`)
		e.wantLines(1, "until the kubelet publishes it again", `volumeID="v3"`)
	})
}

func TestTheKubeletsDirectoryMayBeSpelledBadly(t *testing.T) {
	inBubbleWith(t, func(o *Options) { o.KubeletDir += "/./" }, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.request("v1"))
	})
}

// TestAHangingVolumeHoldsUpNoStart: a container that keeps the plugin from opening its volume delays only its own pod. Once the volume can
// be opened, it is taken over as usual.
func TestAHangingVolumeHoldsUpNoStart(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		hangs, other := e.request("hangs"), e.request("other")
		e.publish(hangs, other)
		e.halt()
		released := make(chan struct{})
		e.mounts.setOnOpen(func(target string) error {
			if target == hangs.Target {
				<-released
			}
			return nil
		})
		e.restart() // Restore has returned
		e.publish(e.request("new"))
		e.updateApp(other, "a", "2")
		e.wantFiles(hangs, "a", "1")
		e.publish(hangs) // the kubelet's republish makes no second mount
		close(released)
		synctest.Wait()
		e.rest()
		e.wantFiles(hangs, "a", "2")
		e.wantBetween("%d mounts were made", e.mounts.count("Create"), 3, 3)
	})
}

// TestOlderImmutableObjectsAreReadAgain: an API server that is catching up sends older immutable objects, which nothing follows. All of them are
// read again at a resync, and nothing before it.
func TestOlderImmutableObjectsAreReadAgain(t *testing.T) {
	inBubble(t, func(e *env) {
		app, db := configMap("app"), configMap("db")
		older := map[volume.Ref]*volume.Object{}
		for _, ref := range []volume.Ref{app, db} {
			e.objects.put(ref, ref.Name, "1")
			older[ref] = e.objects.get(ref)
			e.objects.put(ref, ref.Name, "2")
		}
		r := e.publishNew("v1", "sources", "[{configMap: {name: app}}, {configMap: {name: db}}]")
		e.halt()
		for ref, object := range older {
			e.objects.put(ref, ref.Name, "3")
			e.objects.set(ref, func() { e.objects.again[ref], e.objects.objects[ref] = e.objects.objects[ref], object })
		}
		e.restart()
		e.wait(testResync / 2)
		e.wantFiles(r, "app", "2", "db", "2")
		e.wantCondition(failure.VolumeUpdateFailed, "older than what the files show")
		e.wait(2 * testResync)
		e.wantFiles(r, "app", "3", "db", "3")
		e.wantCondition(ConditionCurrent)
	})
}
