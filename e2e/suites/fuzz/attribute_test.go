package fuzz

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/pkg/publisher"
)

// victim is the volume whose attributes an input changes.
const victim = "csi-victim"

// newAttributeWorld makes a world with a victim.
func newAttributeWorld(tb testing.TB) *world {
	tb.Helper()
	w := newWorld(tb)
	w.must(os.MkdirAll(filepath.Dir(w.target(selfUID, settings)), 0o750))
	w.mustPublish(victim, selfUID, "app")
	w.look()
	return w
}

// What carries attributes in a volume, in the order of an input's numbers.
var carriers = []struct{ path, name string }{
	{".", "volume"}, {".", "pod"}, {"..data", "record"}, {"..data/key", "refs"}, {".", "record"}, {"..data", "pod"},
}

// FuzzAttribute changes an attribute of a volume while the plugin is not running, and starts
// it. No text removes the attribute.
func FuzzAttribute(f *testing.F) {
	for carrier := range carriers {
		for _, text := range []string{
			"", "x", "/", "..", "../..", "ns/pod", "ns/other", "../pod", "ns/..", "kube-system/pod", "ns/pod/x", "ns/pod\n", "\x00", "\xff\xfe",
			driver + ":" + victim, driver + ":" + bystander, driver + ":", driver + ":../x", "other.example.org:" + victim,
			"0123456789abcdef uid 5\n", "0123456789abcdef uid\n", strings.Repeat("0123456789abcdef uid 5\n", 2000), " \n \n",
			"Secret/other/db\n", "ConfigMap/ns/app\n", "ConfigMap/../../x\n", "Pod/x/y\n", "Secret/other/db", strings.Repeat("Secret/other/db\n", 3000),
			strings.Repeat("x", 60_000), strings.Repeat("x", 64<<10),
		} {
			f.Add(byte(carrier), text)
		}
	}
	on := keep(f, newAttributeWorld)
	f.Fuzz(func(t *testing.T, carrier byte, text string) {
		if len(text) > 64<<10 {
			return
		}
		on(t, func(w *world) { w.tryAttribute(t, int(carrier)%len(carriers), text) })
	})
}

// tryAttribute stops the plugin, changes an attribute of the victim, starts the plugin again,
// and ends the volumes.
func (w *world) tryAttribute(t *testing.T, carrier int, text string) {
	t.Helper()
	w.end()
	at := carriers[carrier]
	target := w.target(selfUID, settings)
	prefix, err := harness.AttributePrefix(target)
	w.must(err)
	w.must(harness.ChangeVolume(target, func(dir string) error {
		path, name := filepath.Join(dir, at.path), prefix+at.name
		if text == "" {
			if err := unix.Removexattr(path, name); !errors.Is(err, unix.ENODATA) {
				return err
			}
			return nil
		}
		err := unix.Setxattr(path, name, []byte(text), 0)
		if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
			return nil
		}
		return err
	}))
	if err := w.begin(klog.NewContext(context.Background(), klog.Logger{})); err != nil {
		t.Fatalf("start: %v", err)
	}
	w.workOff(t)
	place := w.place(victim, target) // its files may be others now
	place.source = ""                // a start unmounts nothing of a pod that is there
	w.check(t, "start", place)
	// The kubelet may publish again.
	if err := w.publish(w.request(victim, selfUID, "app")); err != nil {
		t.Errorf("publish again: %v", err)
	}
	w.workOff(t)
	w.check(t, "publish", place)
	for _, v := range []struct{ id, uid string }{{victim, selfUID}, {bystander, bystanderUID}} {
		if err := w.unpublish(v.id, w.target(v.uid, settings)); err != nil {
			t.Errorf("unpublish of %s: %v", v.id, err)
		}
		w.check(t, "unpublish of "+v.id, w.place(v.id, w.target(v.uid, settings)))
		if _, err := os.Lstat(w.target(v.uid, settings)); err == nil {
			t.Errorf("%s is still there", v.id)
		}
	}
	w.mustPublish(victim, selfUID, "app")
	w.mustPublish(bystander, bystanderUID, "app")
	w.look()
}

// workOff returns when every volume that a start takes over was reconciled.
func (w *world) workOff(t *testing.T) {
	t.Helper()
	const left = "it is not updated until the kubelet publishes it again"
	harness.Eventually(t, time.Minute, func() error {
		for v := range w.current.Load().Volumes {
			if v.Condition == publisher.ConditionUnknown && !strings.HasPrefix(v.Reason, left) {
				return fmt.Errorf("volume %s: %s", v.VolumeID, v.Reason)
			}
		}
		return nil
	})
}
