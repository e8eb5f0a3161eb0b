package suite

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// mountKey mounts one key of a volume alone in the pod's first container, and returns
// the file's path there.
func mountKey(spec *corev1.Pod, volume, key string) string {
	path := "/keys/" + volume + "/" + key
	c := &spec.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: path, SubPath: key})
	return path
}

// A container that has mounted one key of an InPlace volume by subPath sees each change
// of it, where an Atomic volume, and the kubelet's own, show what they had at first. A key that
// goes leaves its file empty, and one that comes again fills it.
func TestInPlaceThroughSubPath(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	const first, other = "the first text, which is longer than the second", "untouched"
	n.createConfigMap("settings", object{"key": first, "other": other})
	spec := newPod("reader",
		refvol("live", attributes{"configMap": "settings", "writeStrategy": "InPlace"}),
		refvol("atomic", attributes{"configMap": "settings"}),
		native("native", "settings"))
	live, others := mountKey(spec, "live", "key"), mountKey(spec, "live", "other")
	atomic, kubelets := mountKey(spec, "atomic", "key"), mountKey(spec, "native", "key")
	p := n.start(spec)
	if err := p.hasText(t.Context(), "probe", live, first); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		text string
		data object
	}{
		{"a shorter text", "second", object{"key": "second", "other": other}},
		{"no text", "", object{"key": "", "other": other}},
		{"a longer text", first + first, object{"key": first + first, "other": other}},
		{"no key", "", object{"other": other}},
		{"the key again", "again", object{"key": "again", "other": other}},
	} {
		w := p.await(live, c.text, podTimeout, kubelets, others, mountDir+"live/key")
		before := time.Now()
		n.updateConfigMap("settings", c.data)
		got := w.arrive()
		took := got.at.Sub(before)
		t.Logf("%s: in the container after %s", c.what, milliseconds(took))
		if took >= busyLimit {
			t.Errorf("%s took %s", c.what, milliseconds(took))
		}
		if got.Failed > 0 {
			t.Errorf("%s: %d of %d reads failed: %s", c.what, got.Failed, got.Reads, got.Error)
		}
		if got.Others[kubelets] != first || got.Others[others] != other || got.Others[mountDir+"live/key"] != c.text {
			t.Errorf("%s: the other files hold %q", c.what, got.Others)
		}
	}
	// Once the volumes themselves have the last text.
	for _, volume := range []string{"atomic", "native"} {
		p.probe("await", mountDir+volume+"/key", "again", nativeTimeout.String())
	}
	for _, file := range []string{atomic, kubelets} {
		if err := p.hasText(t.Context(), "probe", file, first); err != nil {
			t.Error(err)
		}
	}
	for _, file := range []string{live, mountDir + "live/key"} {
		if got := p.probe("write", file, "changed"); got == "ok\n" {
			t.Errorf("%s can be written", file)
		}
	}
}

// awaitOneGeneration waits until the volume holds nothing of its earlier files.
func (p *pod) awaitOneGeneration(dir string) {
	p.t.Helper()
	eventually(p.t, podTimeout, "one generation in "+dir, func(ctx context.Context) error {
		entries, err := p.entries(ctx, dir) // it fails if a file goes meanwhile
		if err != nil {
			return err
		}
		count := 0
		for _, e := range entries {
			if generation.MatchString(e.Path) {
				count++
			}
		}
		if count != 1 {
			return fmt.Errorf("there are %d", count)
		}
		return nil
	})
}
