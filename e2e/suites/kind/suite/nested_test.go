package suite

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/internal/must"
)

// mountBelow mounts volumes of a pod in one of its containers, each written as name:path or name:path:subPath.
func mountBelow(c *corev1.Container, texts ...string) {
	for _, text := range texts {
		parts := append(strings.Split(text, ":"), "")
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: parts[0], MountPath: parts[1], SubPath: parts[2]})
	}
}

// emptyDir describes a volume that the pod may write to.
func emptyDir(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

// nestedPod has mounts one and three directories below a volume, other ones in its second container, and a Secret above the
// token.
func nestedPod() *corev1.Pod {
	config := native("config", "settings")
	spec := newPod("nested", config)
	spec.Spec.AutomountServiceAccountToken = nil
	spec.Spec.Volumes = append(spec.Spec.Volumes, emptyDir("near"), emptyDir("far"), corev1.Volume{
		Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "db"}},
	})
	spec.Spec.Containers = append(spec.Spec.Containers, newContainer("other", []corev1.Volume{config}))
	mountBelow(&spec.Spec.Containers[0], "near:"+mountDir+"config/tls", "far:"+mountDir+"config/a/b/c", "secret:/var/run/secrets")
	mountBelow(&spec.Spec.Containers[1], "near:"+mountDir+"config/x", "far:"+mountDir+"config/a/d")
	return spec
}

// The same pod with mounts below its volumes shows the same files and directories in both namespaces: one has the kubelet's
// volumes, the other the plugin's. There an update takes no mount away.
func TestNestedMounts(t *testing.T) {
	t.Parallel()
	plain, lives := newNamespace(t), liveNamespace(t)
	pods := map[*namespace]*pod{}
	for _, n := range []*namespace{plain, lives} {
		n.setConfigMap("settings", object{"key": "first"})
		n.put(kindSecret, "db", contents{text: map[string]string{"password": canary("nested")}})
		pods[n] = n.start(nestedPod())
	}
	for _, name := range []string{"config", "secret"} {
		must.Do(t, isLive(pods[lives].Pod, nodeIdentityDriver, name))
		if err := isLive(pods[plain].Pod, nodeIdentityDriver, name); err == nil {
			t.Fatal("the pod of the other namespace was changed")
		}
	}
	kubelets, plugins := pods[plain].snapshots(t)["config"], pods[lives].snapshots(t)["config"]
	for _, path := range []string{"key", "tls", "a/b/c", "x", "a/d"} {
		if kubelets[path] == "" {
			t.Errorf("the kubelet's volume has no %s: %q", path, kubelets)
		}
	}
	for _, d := range compare(kubelets, plugins) {
		t.Error(d)
	}
	for _, p := range pods {
		p.wantText("/var/run/secrets/password", canary("nested"))
		if _, err := p.ask(t.Context(), "probe", "tree", "/var/run/secrets/kubernetes.io/serviceaccount"); err != nil {
			t.Error(err)
		}
	}
	pods[lives].keepsMounts("settings", mountDir+"config/key", "second", mountDir+"config/tls", mountDir+"config/a/b/c")
	if err := pods[lives].hasText(t.Context(), "other", mountDir+"config/x/mark", mountDir+"config/tls"); err != nil {
		t.Error(err) // both containers mount it
	}
}

// keepsMounts marks writable mounts, changes the key of a ConfigMap, waits for the change and for the end of earlier files, and
// finds the marks.
func (p *pod) keepsMounts(configMap, file, text string, mounts ...string) {
	p.t.Helper()
	for _, dir := range mounts {
		if got := p.probe("write", dir+"/mark", dir); got != "ok\n" {
			p.t.Fatalf("%s can't be written to: %s", dir, got)
		}
	}
	p.setConfigMap(configMap, object{"key": text})
	p.awaitText(file, text, podTimeout)
	if root, below := strings.CutPrefix(file, mountDir); below {
		name, _, _ := strings.Cut(root, "/")
		p.awaitOneGeneration(mountDir + name)
	}
	for _, dir := range mounts {
		p.wantText(dir+"/mark", dir)
	}
}

// settingsBelow describes a volume of the pod that shows the key below a directory.
func settingsBelow(name string) corev1.Volume {
	v := native(name, "settings")
	v.ConfigMap.Items = []corev1.KeyToPath{item("key", "conf/key")}
	return v
}

// The attribute names the directories where the plugin doesn't read the pod's spec. In place a mount may lie below a subPath and
// below a directory of files.
func TestNestedMountsOfAttributes(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.setConfigMap("settings", object{"key": "first"})
	spec := withUnmounted(newPod("attributes",
		refvol("listed", attributes{"configMap": "settings", "directories": "[tls, a/b/c]"}),
		refvol("inplace", attributes{"volume": "own", "writeStrategy": "InPlace"}),
	), settingsBelow("own"), emptyDir("e"), emptyDir("f"), emptyDir("g"), emptyDir("h"))
	mountBelow(&spec.Spec.Containers[0], "e:"+mountDir+"listed/tls", "f:"+mountDir+"listed/a/b/c",
		"inplace:/part:conf", "g:/part/tls", "h:"+mountDir+"inplace/conf/cache")
	p := n.start(spec)
	p.wantText("/part/key", "first")
	p.keepsMounts("settings", mountDir+"listed/key", "second", mountDir+"listed/tls", mountDir+"listed/a/b/c", "/part/tls", mountDir+"inplace/conf/cache")
	p.awaitText("/part/key", "second", podTimeout)
	p.awaitText(mountDir+"inplace/conf/key", "second", podTimeout)
}

// TestSubPathsInPlace: what docs/updates.md says of subPath mounts with InPlace.
func TestSubPathsInPlace(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.setConfigMap("settings", object{"a": "first"})
	const items = `[{key: a, path: conf/a}, {key: b, path: conf/b}, {key: late, path: late}]`
	shown := func(name, strategy string) corev1.Volume {
		return refvol(name, attributes{"configMap": "settings", "optional": "true", "items": items, "writeStrategy": strategy})
	}
	spec := newPod("parts", shown("live", "InPlace"), shown("atomic", "Atomic"), native("native", "settings"))
	mountBelow(&spec.Spec.Containers[0], "live:/a:conf/a", "live:/dir:conf", "atomic:/atomicdir:conf", "atomic:/atomic:conf/a", "native:/native:a")
	p := n.start(spec)

	late := newPod("late", shown("live", "InPlace"))
	mountBelow(&late.Spec.Containers[0], "live:/late:late")
	waits := n.create(late)
	waits.awaitWarning("Failed", "failed to create subPath directory for volumeMount \"live\"")

	n.setConfigMap("settings", object{"a": "2nd", "b": "another", "late": "here"})
	p.awaitText("/a", "2nd", podTimeout)         // a shorter text
	p.awaitText("/dir/b", "another", podTimeout) // a directory gets another key
	waits.awaitReady()                           // the key exists
	waits.awaitText("/late", "here", podTimeout)

	n.setConfigMap("settings", object{"late": "here"})
	for _, file := range []string{"/a", "/dir/a", "/dir/b"} { // removed keys
		p.awaitText(file, "", podTimeout)
	}
	n.setConfigMap("settings", object{"a": "again", "late": "here"})
	for _, file := range []string{"/a", "/dir/a"} { // a key that comes back
		p.awaitText(file, "again", podTimeout)
	}
	p.awaitText(mountDir+"native/a", "again", nativeTimeout)
	for _, file := range []string{"/atomic", "/native"} { // as with the kubelet's own volumes
		p.wantText(file, "first")
	}
	for _, file := range []string{"/a", mountDir + "live/conf/a"} {
		if got := p.probe("write", file, "changed"); got == "ok\n" {
			t.Errorf("%s can be written", file)
		}
	}
	eventually(t, podTimeout, "the directory of the Atomic volume is empty", func(ctx context.Context) error {
		entries, err := p.entries(ctx, "/atomicdir")
		if err == nil && len(entries) != 1 {
			err = fmt.Errorf("it has %d entries", len(entries)-1)
		}
		return err
	})
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
