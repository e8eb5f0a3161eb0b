package publisher

import (
	"fmt"
	"testing"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/manager"
)

// An object that isn't cached fails a publish at once, even if other objects are unknown. Nothing of the volume remains.
func TestAPublishWithoutRoomForItsObjects(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.failWith(configMap("app"), fmt.Errorf("app: %w", manager.ErrNotSynced))
		full := &manager.FullError{Ref: secret("db"), Size: 700, Others: 301, Max: 1000}
		e.objects.failWith(secret("db"), full)
		r := e.request("v1", "sources", "[{configMap: {name: app}}, {secret: {name: db}}]")
		const format = `Secret "shop/db" takes 700 bytes of memory, the node's other objects %d, together more than 1000 (--max-cached-size)`
		text := fmt.Sprintf(format, 301)
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonCacheFull, text)
		e.wantEvents(r.Pod.String() + ": VolumeUpdateFailed: " + text)
		full.Others = 302
		e.wantReason(e.p.Publish(e.ctx, r), failure.ReasonCacheFull, fmt.Sprintf(format, 302))
		e.wantEvents("VolumeUpdateFailed") // client-go merges the others
		e.wantNothing()
		e.objects.put(configMap("app"), "a", "1")
		e.objects.put(secret("db"), "b", "2")
		e.objects.failWith(configMap("app"), nil)
		e.objects.failWith(secret("db"), nil)
		e.publish(r)
		e.unpublish(r)
		e.wantNothing()
	})
}

// The objects of a mounted volume may use any memory: from the moment it is mounted, and after a restart from the start.
func TestTheObjectsOfMountedVolumesAreKept(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1", "configMap", "app")
		waiting := e.publishing(r)
		e.wantWaiting(waiting)
		e.wantKept(r, false)
		e.objects.put(configMap("app"), "a", "1")
		if err := <-waiting; err != nil {
			e.Fatal(err)
		}
		e.wantKept(r, true)
		kept := false
		e.objects.onRegister = func() { kept = e.objects.isKept(r.Pod, r.VolumeID) }
		e.restart()
		e.settle()
		e.wantKept(r, true)
		if !kept {
			e.Error("the restarted plugin registered a mounted volume as a new one")
		}
	})
}

func (e *env) wantKept(r binding.Request, want bool) {
	e.Helper()
	e.settle()
	if got := e.objects.isKept(r.Pod, r.VolumeID); got != want {
		e.Errorf("its objects are kept: %t, want %t", got, want)
	}
}
