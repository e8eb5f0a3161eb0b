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
// of it, where the kubelet's own volume shows what it had at first. A key that goes leaves
// its file empty, and one that comes again fills it.
func TestInPlaceThroughSubPath(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	const first, other = "the first text, which is longer than the second", "untouched"
	n.createConfigMap("settings", object{"key": first, "other": other})
	spec := newPod("reader",
		refvol("live", attributes{"configMap": "settings", "writeStrategy": "InPlace"}),
		native("native", "settings"))
	live, others, kubelets := mountKey(spec, "live", "key"), mountKey(spec, "live", "other"), mountKey(spec, "native", "key")
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
	for _, file := range []string{live, mountDir + "live/key"} {
		if got := p.probe("write", file, "changed"); got == "ok\n" {
			t.Errorf("%s can be written", file)
		}
	}
}

// A subPath of the kubelet's own volume stays as it was when the volume itself has
// changed; one of refvol's follows only with InPlace.
func TestSubPathOfOthersNeverChanges(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.createConfigMap("settings", object{"key": canary("old")})
	spec := newPod("reader",
		native("native", "settings"),
		refvol("atomic", attributes{"configMap": "settings"}),
		refvol("in-place", attributes{"configMap": "settings", "writeStrategy": "InPlace"}))
	want := map[string]string{
		mountKey(spec, "native", "key"):   canary("old"),
		mountKey(spec, "atomic", "key"):   canary("old"),
		mountKey(spec, "in-place", "key"): canary("new"),
	}
	p := n.start(spec)
	n.updateConfigMap("settings", object{"key": canary("new")})
	p.probe("await", mountDir+"native/key", canary("new"), nativeTimeout.String())
	for file, text := range want {
		if err := p.hasText(t.Context(), "probe", file, text); err != nil {
			t.Error(err)
		}
	}
}

// Who names an owner gets the modes that it asks for, with an fsGroup too and after each
// change: the owner reads a file of mode 0400, and who is in the group does not.
func TestExactModesWithFSGroup(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.createSecret("login", object{"password": canary("old")})
	var volumes []corev1.Volume
	for name, strategy := range map[string]string{"atomic": "Atomic", "in-place": "InPlace"} {
		volumes = append(volumes, refvol(name, attributes{
			"secret": "login", "uid": "1000", "defaultMode": "0400", "writeStrategy": strategy,
		}))
	}
	spec := newPod("reader", volumes...)
	spec.Spec.SecurityContext.FSGroup = new(int64(1001))
	member := newContainer("member", volumes)
	member.SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(1002))}
	spec.Spec.Containers = append(spec.Spec.Containers, member)
	p := n.start(spec)
	check := func(text string) {
		t.Helper()
		for _, v := range volumes {
			found := 0
			for _, e := range p.tree(mountDir + v.Name) {
				if e.Type != "file" || len(e.Content) == 0 && !e.Denied {
					continue
				}
				found++
				if e.Denied || string(e.Content) != text || e.Mode != "0400" || e.UID != 1000 || e.GID != 1001 {
					t.Errorf("%s: got %+v, want %q for its owner alone", v.Name, e, text)
				}
			}
			if found != 1 {
				t.Errorf("%s: %d files", v.Name, found)
			}
			if answer, err := p.ask(t.Context(), "member", "read", mountDir+v.Name+"/password"); err == nil {
				t.Errorf("%s: a member of the group reads %q", v.Name, answer)
			}
		}
	}
	check(canary("old"))
	n.updateSecret("login", object{"password": canary("new")})
	for _, v := range volumes {
		p.probe("await", mountDir+v.Name+"/password", canary("new"), podTimeout.String())
	}
	// The generation before stays for a while.
	p.awaitOneGeneration(mountDir + "atomic")
	check(canary("new"))
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
