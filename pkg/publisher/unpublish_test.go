package publisher

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/sandbox"
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

// Nobody knows what was asked for: the mount goes all the same.
func TestUnpublishNeedsNoState(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.objects.failWith(configMap("app"), errors.New("no API server"))
		e.restartUnread()
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

// An empty directory at the target goes, so only what can be a target may be named.
func TestUnpublishRefusesWhatIsNoTarget(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		pod := strings.TrimSuffix(r.Target, "/volumes/kubernetes.io~csi/settings/mount")
		form := filepath.Join(e.opts.KubeletDir, "pods") + "/<pod UID>/volumes/kubernetes.io~csi/<volume name>/mount"
		for _, target := range []string{
			sandbox.NewOutside(e.T, filepath.Join(e.T.TempDir(), "outside")).Path("etc/empty"),
			"relative",
			e.opts.KubeletDir + "/plugins_registry",
			pod,
			pod + "/volumes/kubernetes.io~empty-dir/cache",
			pod + "/volumes/kubernetes.io~empty-dir/cache/mount",
			pod + "/volumes/kubernetes.io~csi/settings",
			pod + "/volumes/kubernetes.io~csi/settings/mount/..data/mount",
			r.Target + "/",
			pod + "/../uid-v1/volumes/kubernetes.io~csi/settings/mount",
			pod + "/../volumes/kubernetes.io~csi/settings/mount",
		} {
			shape := fmt.Sprintf("Invalid value: %q: must be %s", target, form)
			e.wantReason(e.p.Unpublish(e.ctx, r.VolumeID, target), ReasonInvalid, "target_path: "+shape)
			_, err := e.p.Stats(e.ctx, r.VolumeID, target)
			e.wantReason(err, ReasonNotFound, "volume_path: "+shape)
		}
		long := "/" + strings.Repeat("x", 1<<20)
		e.wantReason(e.p.Unpublish(e.ctx, r.VolumeID, long), ReasonInvalid, "target_path: Invalid value: a path of 1048577 bytes: must be "+form)
		if n := e.mounts.count("Unmount"); n > 0 {
			t.Errorf("%d unmounts were tried", n)
		}
		e.wantFiles(r, "a", "1")
	})
}

func TestUnpublishOfAnotherTargetKeepsTheVolume(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.settle() // the mounts have been listed: nothing that was forgotten is taken over again
		other := r
		other.Target = strings.Replace(r.Target, "/settings/", "/other/", 1)
		e.unpublish(other)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "2")
		e.unpublish(r)
		e.wantNothing()
	})
}
