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

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	driver = harness.DriverName
	// selfUID is the pod for which an input's volume is published, and settings that volume's
	// name; otherUID is a pod with volumes of all sorts, of which none is the plugin's.
	selfUID, otherUID = "uid-self", "uid-other"
	settings          = "settings"
	// bystander is a volume of the plugin's, of a pod of its own.
	bystander, bystanderUID = "csi-bystander", "uid-bystander"
)

// world is a node, with a plugin and all that a plugin must leave alone. It belongs to one
// goroutine.
type world struct {
	// TB is the test of the input that is tried.
	testing.TB
	*plugin
	// top has the other two: the kubelet's directory, and one that is nobody's business.
	top, kubelet, outside string
	// before is what was there when it was last looked at.
	before snapshot
	// others are ids that mounts carry which are at no target; see decoyMounts.
	others []string
}

// newWorld makes a world. The caller closes it.
func newWorld(tb testing.TB) *world {
	tb.Helper()
	top, err := os.MkdirTemp("", topPrefix)
	if err == nil {
		top, err = filepath.EvalSymlinks(top)
	}
	if err != nil {
		tb.Fatal(err)
	}
	w := &world{TB: tb, top: top, kubelet: top + "/kubelet", outside: top + "/outside"}
	w.makeDecoys()
	w.mountDecoys()
	w.must(os.MkdirAll(w.target(selfUID, settings), 0o750))
	w.must(os.Remove(w.target(selfUID, settings)))
	w.must(os.MkdirAll(filepath.Dir(w.target(bystanderUID, settings)), 0o750))
	w.plugin = startPlugin(tb, w.top, w.kubelet)
	w.must(w.publish(w.request(bystander, bystanderUID)))
	w.look()
	return w
}

// close ends the plugin and removes everything.
func (w *world) close() {
	w.Helper()
	w.must(w.plugin.stop())
	w.unmountBelow(w.top)
	w.must(os.RemoveAll(w.top))
}

func (w *world) unmountBelow(dir string) {
	w.Helper()
	mounts, err := harness.MountsBelow(dir)
	w.must(err)
	for _, m := range mounts {
		err := unix.Unmount(m.Target, unix.MNT_DETACH)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // gone with its parent
			w.must(err)
		}
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// target is where a kubelet has a volume of a pod shown.
func (w *world) target(uid, name string) string {
	return w.kubelet + "/pods/" + uid + "/volumes/kubernetes.io~csi/" + name + "/mount"
}

// place is where a call about a volume id and a path may change something.
func (w *world) place(id, path string) place {
	var p place
	if w.isTarget(path) {
		p.target, p.source = path, driver+":"+id
	}
	return p
}

// named returns what stands in a path where a target has its volume's name.
func (w *world) named(path string) string { return filepath.Base(filepath.Dir(path)) }

// isFormed says, by other means than the plugin's, whether a path has the form of a target.
func (w *world) isFormed(path string) bool {
	parts := strings.Split(path, "/")
	above := len(strings.Split(w.kubelet, "/"))
	if len(parts) != above+6 || path != w.target(parts[above+1], parts[above+4]) {
		return false
	}
	for _, part := range []string{parts[above+1], parts[above+4]} {
		if part == "" || part == "." || part == ".." || len(part) > 255 || strings.ContainsRune(part, 0) {
			return false
		}
	}
	return true
}

// isTarget says whether a path is one at which a volume may be shown now.
func (w *world) isTarget(path string) bool {
	if !w.isFormed(path) {
		return false
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil || parent != filepath.Dir(path) {
		return false
	}
	info, err := os.Lstat(path)
	return err != nil || info.IsDir()
}

// expand puts this world's paths in the place of their names, so that inputs are the same in
// every world.
func (w *world) expand(text string) string {
	return strings.NewReplacer("{kubelet}", w.kubelet, "{outside}", w.outside, "{top}", w.top,
		"{target}", w.target(selfUID, settings), "{bystander}", w.target(bystanderUID, settings)).Replace(text)
}

// look notes what is there.
func (w *world) look() {
	w.Helper()
	var err error
	w.before, err = take(w.top)
	w.must(err)
}

// check fails the test if something has changed since the last look that was not to.
func (w *world) check(t *testing.T, what string, at place) {
	t.Helper()
	now, err := take(w.top)
	if err != nil {
		t.Fatal(err)
	}
	if wrong := compare(w.before, now, at); len(wrong) > 0 {
		t.Fatalf("after %s:\n%s", what, strings.Join(wrong, "\n"))
	}
	w.before = now
}

// makeDecoys makes what other volumes and plugins have, and what somebody may have prepared
// for a plugin that follows links.
func (w *world) makeDecoys() {
	w.Helper()
	self, other := w.kubelet+"/pods/"+selfUID+"/volumes/", w.kubelet+"/pods/"+otherUID+"/volumes/"
	for _, dir := range []string{
		w.outside + "/empty", w.outside + "/dir", w.outside + "/volume", w.outside + "/volume/mount", w.outside + "/ours", w.outside + "/foreign",
		w.kubelet + "/plugins/other/empty", w.kubelet + "/plugins/ours", w.kubelet + "/plugins_registry", w.kubelet + "/pods/volumes/kubernetes.io~csi/x",
		self + "kubernetes.io~csi/pointing", self + "kubernetes.io~csi/taken/mount", self + "kubernetes.io~csi/file", self + "kubernetes.io~csi/idle/mount",
		self + "kubernetes.io~empty-dir/cache/mount", self + "kubernetes.io~empty-dir/full", self + "kubernetes.io~empty-dir/links",
		other + "kubernetes.io~csi/idle/mount", other + "kubernetes.io~csi/foreign/mount", other + "kubernetes.io~csi/near/mount", other + "kubernetes.io~csi/part/mount",
		other + "kubernetes.io~secret/token", other + "kubernetes.io~empty-dir/ours",
	} {
		w.must(os.MkdirAll(dir, 0o755))
	}
	for _, file := range []string{
		w.outside + "/file", w.outside + "/dir/file", w.kubelet + "/plugins/other/csi.sock",
		self + "kubernetes.io~csi/taken/mount/file", self + "kubernetes.io~csi/file/mount", self + "kubernetes.io~empty-dir/full/file",
	} {
		w.must(os.WriteFile(file, []byte("precious"), 0o600))
	}
	for link, to := range map[string]string{
		w.outside + "/link":                         "file",
		w.kubelet + "/pods/uid-link":                otherUID,
		w.kubelet + "/pods/uid-out":                 w.outside,
		self + "kubernetes.io~csi/linked":           w.outside + "/volume",
		self + "kubernetes.io~csi/pointing/mount":   w.outside + "/empty",
		self + "kubernetes.io~csi/beside":           settings,
		self + "kubernetes.io~empty-dir/links/up":   "../../../../..",
		self + "kubernetes.io~empty-dir/links/root": "/",
		self + "kubernetes.io~empty-dir/links/proc": "/proc/self/cwd",
	} {
		w.must(os.Symlink(to, link))
	}
}

// mountDecoys mounts what others have, and what carries the plugin's own source but is at no
// target.
func (w *world) mountDecoys() {
	w.Helper()
	other := w.kubelet + "/pods/" + otherUID + "/volumes/"
	for _, m := range []struct{ source, dir string }{
		{"foreign", w.outside + "/foreign"},
		{driver + ":csi-outside", w.outside + "/ours"},
		{driver + ":csi-plugins", w.kubelet + "/plugins/ours"},
		{driver + ":csi-emptydir", other + "kubernetes.io~empty-dir/ours"},
		{"other.example.org:csi-foreign", other + "kubernetes.io~csi/foreign/mount"},
		{driver + "2:csi-near", other + "kubernetes.io~csi/near/mount"},
		{"tmpfs", other + "kubernetes.io~secret/token"},
	} {
		w.must(unix.Mount(m.source, m.dir, "tmpfs", 0, "size=64k"))
		w.must(os.MkdirAll(m.dir+"/dir", 0o755))
		w.must(os.WriteFile(m.dir+"/file", []byte("precious"), 0o600))
		if _, id, ok := strings.Cut(m.source, ":"); ok {
			w.others = append(w.others, id)
		}
	}
	// Part of what carries the plugin's source, at a target.
	w.must(unix.Mount(w.outside+"/ours/dir", other+"kubernetes.io~csi/part/mount", "", unix.MS_BIND, ""))
}

// request is one that publishes a volume of a ConfigMap, as a kubelet sends it.
func (w *world) request(id, uid string) *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId:   id,
		TargetPath: w.target(uid, settings),
		Readonly:   true,
		VolumeCapability: &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		},
		VolumeContext: map[string]string{
			// The keys by which a kubelet tells whose the volume is.
			"csi.storage.k8s.io/pod.name": "pod", "csi.storage.k8s.io/pod.namespace": "ns", "csi.storage.k8s.io/pod.uid": uid,
			"csi.storage.k8s.io/serviceAccount.name": "default", "configMap": "app",
		},
	}
}

func (w *world) publish(r *csi.NodePublishVolumeRequest) error {
	ctx, cancel := callContext()
	defer cancel()
	_, err := w.node.NodePublishVolume(ctx, r)
	return err
}

func (w *world) unpublish(id, target string) error {
	ctx, cancel := callContext()
	defer cancel()
	_, err := w.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	return err
}

func (w *world) stats(id, target string) error {
	ctx, cancel := callContext()
	defer cancel()
	_, err := w.node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target})
	return err
}

// callContext bounds a call, so that one that hangs is an error. It does not end with the
// test, so that cleaning up works.
func callContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Minute)
}

// keep runs a fuzz function on a world that lives for many inputs, and makes another after
// one that failed.
func keep(f *testing.F) func(t *testing.T, run func(*world)) {
	var w *world
	f.Cleanup(func() {
		if w != nil {
			w.TB = f
			w.close()
		}
	})
	return func(t *testing.T, run func(*world)) {
		t.Helper()
		if w == nil {
			w = newWorld(t)
		}
		w.TB = t
		defer func() {
			if t.Failed() {
				failed := w
				w = nil
				failed.close()
			}
		}()
		run(w)
	}
}

// valid says whether texts can be in a request: gRPC's own encoding refuses others.
func valid(texts ...string) bool {
	return strings.ToValidUTF8(fmt.Sprint(texts), "") == fmt.Sprint(texts)
}
