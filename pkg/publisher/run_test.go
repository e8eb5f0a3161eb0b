package publisher

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

func TestResync(t *testing.T) {
	inBubble(t, func(e *env) {
		const volumes = 50
		var refs []volume.Ref
		for i := range volumes {
			name := fmt.Sprintf("app-%d", i)
			refs = append(refs, configMap(name))
			e.objects.put(configMap(name), "a", "1")
			e.publish(e.request(fmt.Sprintf("v%d", i), "configMap", name))
			e.objects.takeReads(configMap(name))
		}
		begin := time.Now()
		after(2*testResync - 1)
		moments := map[time.Duration]bool{}
		for _, ref := range refs {
			at := e.objects.takeReads(ref)
			if len(at) != 1 {
				t.Fatalf("%s was read %d times", ref, len(at))
			}
			took := at[0].Sub(begin)
			if took < testResync || took >= 2*testResync {
				t.Errorf("%s was read after %v", ref, took)
			}
			moments[took/(10*time.Second)] = true
		}
		if len(moments) < 3 {
			t.Errorf("all were read at once, in %v", moments)
		}
	})
}

// An event may be lost, or the mount table may change without one.
func TestResyncMendsWhatNoEventTold(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.objects.Subscribe(func(volume.ServiceAccount, volume.Ref) {})
		e.objects.put(configMap("app"), "a", "2")
		after(2 * testResync)
		e.wantFiles(r, "a", "2")
	})
}

func TestTheEndOfRunEndsPublishesThatWait(t *testing.T) {
	inBubble(t, func(e *env) {
		waiting := e.publishing(e.request("v1"))
		e.wantWaiting(waiting)
		e.stop()
		e.stop = nil
		e.wantReason(<-waiting, ReasonUnavailable, "")
	})
}

// A write that the end cuts short is no problem of its volume.
func TestRunEndsDuringAWrite(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		gate := e.gateAt("Reopen")
		e.objects.put(configMap("app"), "a", "2")
		<-gate.entered
		ended := make(chan struct{})
		go func() { e.stop(); close(ended) }()
		synctest.Wait()
		close(gate.opened)
		<-ended
		e.stop = nil
		e.wantFiles(r, "a", "1")
		if lines := e.logs.with("Volume does not show what it should"); len(lines) > 0 {
			t.Errorf("the end was logged as a problem: %q", lines)
		}
		e.mounts.on("Reopen", nil)
		e.restart()
		e.settle()
		e.wantFiles(r, "a", "2")
	})
}
