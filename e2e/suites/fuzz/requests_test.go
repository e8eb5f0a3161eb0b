package fuzz

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxText bounds the text of a refusal, which ends up in logs and events.
const maxText = 64 << 10

// wantRefused checks that a call failed with InvalidArgument and a text that names the field
// and can be shown as it is.
func wantRefused(t *testing.T, err error, fields ...string) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != codes.InvalidArgument {
		t.Fatalf("got %s: %s; want %s", s.Code(), s.Message(), codes.InvalidArgument)
	}
	wantText(t, s.Message())
	for _, field := range fields {
		if strings.Contains(s.Message(), field) {
			return
		}
	}
	t.Errorf("the text names none of %q: %s", fields, s.Message())
}

func wantText(t *testing.T, text string) {
	t.Helper()
	if len(text) > maxText || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
		t.Errorf("a text of %d bytes, or with what can't be printed: %.200q", len(text), text)
	}
}

// settle ends an input: it removes the volume, if there is one, and what is left is as it was.
func (w *world) settle(t *testing.T, id, target string) {
	t.Helper()
	err := w.unpublish(id, target)
	at := w.place(id, target)
	w.check(t, "unpublish", at)
	if at.target == "" {
		return
	}
	if _, statErr := os.Lstat(target); err == nil && !errors.Is(statErr, fs.ErrNotExist) {
		t.Errorf("the target is there after the unpublish: %v", statErr)
	}
	if strings.Contains(target, "/idle/") { // an empty directory at a target is the plugin's to remove
		w.must(os.MkdirAll(target, 0o755))
		w.look()
	}
}

func FuzzTargetPath(f *testing.F) {
	for _, path := range []string{
		"{target}", "{bystander}", "{kubelet}/pods/uid-other/volumes/kubernetes.io~csi/idle/mount", "{kubelet}/pods/uid-self/volumes/kubernetes.io~csi/idle/mount",
		"", "/", ".", "..", "x", "{kubelet}", "{kubelet}/pods", "{kubelet}/pods/uid-self", "{kubelet}/pods/uid-self/volumes", "{target}/", "{target}/mount", "/{target}", "{target}/../mount",
		"{target}/../../../../../../../outside/empty", "{target}/../../linked/mount", "{kubelet}/../outside/empty", "{outside}", "{outside}/empty", "{outside}/new", "{outside}/ours", "{outside}/foreign", "{outside}/file",
		"{kubelet}/pods/uid-self/volumes/kubernetes.io~csi/linked/mount", "{kubelet}/pods/uid-self/volumes/kubernetes.io~csi/pointing/mount", "{kubelet}/pods/uid-self/volumes/kubernetes.io~csi/beside/mount",
		"{kubelet}/pods/uid-self/volumes/kubernetes.io~csi/taken/mount", "{kubelet}/pods/uid-self/volumes/kubernetes.io~csi/file/mount", "{kubelet}/pods/uid-self/volumes/kubernetes.io~csi/none/mount",
		"{kubelet}/pods/uid-self/volumes/kubernetes.io~csi/./mount", "{kubelet}/pods/uid-self/volumes/kubernetes.io~csi/../mount", "{kubelet}/pods/uid-self/volumes/kubernetes.io~csi//mount", "{kubelet}/pods/uid-self/volumes/kubernetes.io~csi/settings",
		"{kubelet}/pods/uid-self/volumes/kubernetes.io~empty-dir/cache", "{kubelet}/pods/uid-self/volumes/kubernetes.io~empty-dir/cache/mount", "{kubelet}/pods/uid-self/volumes/kubernetes.io~empty-dir/links/up/outside/empty", "{kubelet}/pods/uid-self/volumes/kubernetes.io~empty-dir/links/proc",
		"{kubelet}/pods/uid-other/volumes/kubernetes.io~csi/near/mount", "{kubelet}/pods/uid-other/volumes/kubernetes.io~csi/part/mount", "{kubelet}/pods/uid-other/volumes/kubernetes.io~csi/foreign/mount", "{kubelet}/pods/uid-other/volumes/kubernetes.io~empty-dir/ours",
		"{kubelet}/pods/uid-link/volumes/kubernetes.io~csi/idle/mount", "{kubelet}/pods/uid-out/empty", "{kubelet}/pods/volumes/kubernetes.io~csi/x/mount", "{kubelet}/pods/./volumes/kubernetes.io~csi/x/mount", "{kubelet}/plugins/ours", "{kubelet}/plugins/other/empty", "{kubelet}/plugins_registry/new",
		"{top}/csi.sock", "/proc/self/root{outside}/empty", "/proc/self/cwd", "{target}\x00", "{kubelet}\x00/pods/uid-self/volumes/kubernetes.io~csi/settings/mount", "{target}\n", "KUBELET/pods",
		"{kubelet}/pods/uid-self/volumes/kubernetes.io~csi/" + strings.Repeat("x", 256) + "/mount", "/" + strings.Repeat("x/", 4096), "{target}" + strings.Repeat("/../mount", 500),
	} {
		f.Add(path, selfUID)
	}
	for _, uid := range []string{otherUID, "", ".", "..", "../pods/uid-other", "uid-link", "uid-out", bystanderUID} {
		for _, path := range []string{
			"{target}", "{bystander}", "{kubelet}/pods/" + uid + "/volumes/kubernetes.io~csi/idle/mount", "{kubelet}/pods/uid-other/volumes/kubernetes.io~csi/idle/mount", "{kubelet}/pods/volumes/kubernetes.io~csi/x/mount",
		} {
			f.Add(path, uid)
		}
	}
	on := keep(f)
	f.Fuzz(func(t *testing.T, path, uid string) {
		if valid(path, uid) {
			on(t, func(w *world) { w.tryTarget(t, w.expand(path), uid) })
		}
	})
}

// tryTarget publishes a volume at a path for a pod, and unpublishes there what is mounted
// elsewhere.
func (w *world) tryTarget(t *testing.T, path, uid string) {
	t.Helper()
	const id = "csi-target"
	request := w.request(id, uid)
	request.TargetPath = path
	at := w.place(id, path)
	isPods := at.target != "" && path == w.target(uid, w.named(path))
	err := w.publish(request)
	switch {
	case !isPods:
		at.target = "" // not even for a moment
		wantNever(t, err, w.isFormed(path) && path == w.target(uid, w.named(path)))
	case err != nil:
		wantText(t, status.Convert(err).Message())
	}
	w.check(t, "publish", at)
	if !w.isFormed(path) {
		if s := status.Convert(w.stats(id, path)); path != "" && s.Code() != codes.NotFound { // as CSI has it
			t.Errorf("stats: got %s: %s", s.Code(), s.Message())
		}
		wantRefused(t, w.unpublish(id, path), "target_path: ")
	}
	for _, other := range append(w.others, bystander) {
		if other == bystander && path == w.target(bystanderUID, settings) {
			continue
		}
		if err := w.unpublish(other, path); err != nil {
			wantNever(t, err, w.isFormed(path))
		}
		w.check(t, "unpublish of "+other, w.emptied(other, path))
	}
	w.settle(t, id, path)
}

// wantNever checks the answer to what can't succeed. A path that has not the form of a
// target's is the caller's fault, whatever becomes of the node; one with a link or nothing
// in it may become a target.
func wantNever(t *testing.T, err error, formed bool) {
	t.Helper()
	switch s := status.Convert(err); {
	case err == nil:
		t.Fatal("no error")
	case !formed || s.Code() == codes.InvalidArgument:
		wantRefused(t, err, "target_path: ", "pod.uid]: ")
	default:
		wantText(t, s.Message())
	}
}

// emptied is where an unpublish of something that is mounted elsewhere may change something:
// at a target that is an empty directory.
func (w *world) emptied(id, path string) place {
	if entries, err := os.ReadDir(path); err == nil && len(entries) > 0 {
		return place{}
	}
	return w.place(id, path)
}
