package publisher

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/refvol/refvol/pkg/mount"
)

func TestUnpublishOfTheUnknownSucceeds(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.request("v1")
		e.unpublish(r)
		e.objects.put(configMap("app"), "a", "1")
		e.publish(r)
		e.unpublish(r)
		e.unpublish(r)
		e.wantNothing()
	})
}

// After a reboot, or when the driver lost its state: the mount, if any, goes all the
// same, and what is left of a record.
func TestUnpublishNeedsNoState(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.loseRecords()
		e.objects.failWith(configMap("app"), errors.New("no API server"))
		for _, name := range []string{"v1.json", "v1.json.tmp", "v1.json.damaged"} {
			if err := os.WriteFile(e.opts.StateDir+"/"+name, []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		e.unpublish(r)
		e.wantNothing()
	})
}

func TestUnpublishOfAnUnknownVolumeAfterItsMountVanished(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		if err := os.RemoveAll(e.mounts.vanish(r.Target)); err != nil {
			t.Fatal(err)
		}
		e.unpublish(r)
		e.wantNothing()
	})
}

func TestUnpublishOfWhatIsNotOurs(t *testing.T) {
	for _, test := range []struct {
		err    error
		reason Reason
		text   string
	}{
		{mount.ErrForeign, 0, "unmount volume v1 from %s: not of this volume"},
		{errFault, 0, "unmount volume v1 from %s: injected fault"},
		{mount.ErrOutside, ReasonInvalid, "target_path: outside of the kubelet's directory"},
	} {
		t.Run(test.err.Error(), func(t *testing.T) {
			for _, known := range []bool{false, true} {
				inBubble(t, func(e *env) {
					e.objects.put(configMap("app"), "a", "1")
					r := e.request("v1")
					if known {
						e.publish(r)
					}
					e.mounts.failAt("Unmount", test.err)
					err := e.p.Unpublish(e.ctx, r.VolumeID, r.Target)
					text := test.text
					if test.reason == 0 {
						text = fmt.Sprintf(text, r.Target)
					}
					if !errors.Is(err, test.err) || ReasonOf(err) != test.reason || err.Error() != text {
						t.Errorf("got %v, reason %d, want %s", err, ReasonOf(err), text)
					}
					if known { // it lives on, and can be unpublished later
						e.objects.put(configMap("app"), "a", "2")
						e.settle()
						e.wantFiles(r, "a", "2")
					}
					e.mounts.failAt("Unmount", nil)
					e.unpublish(r)
					e.wantNothing()
				})
			}
		})
	}
}

func TestUnpublishOfAnotherTargetKeepsTheVolume(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		other := r
		other.Target += "2"
		e.unpublish(other)
		e.record("v1")
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "2")
		e.unpublish(r)
		e.wantNothing()
	})
}

func TestUnpublishWhoseRecordStaysIsRepeated(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.blockRecord("v1")
		if err := e.p.Unpublish(e.ctx, r.VolumeID, r.Target); err == nil {
			t.Fatal("no error")
		}
		if len(e.mounts.targets()) > 0 || len(e.objects.registrations()) > 0 || e.used() != 0 {
			t.Error("the volume itself was not released")
		}
		e.unblockRecord("v1")
		e.unpublish(r)
		e.wantNothing()
	})
}

func TestAnUnpublishedVolumeIsNotWrittenTo(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		v := e.p.lookup("v1")
		e.unpublish(r)
		if err := errors.Join(e.p.reconcile(e.ctx, v)); err != nil { // by a worker that had found it just before
			t.Error(err)
		}
		e.p.queue.Add("v1")
		e.settle()
		if n := e.mounts.count("Reopen"); n > 0 {
			t.Errorf("its mount was opened %d times", n)
		}
		e.wantNothing()
	})
}
