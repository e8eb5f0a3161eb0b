package limits

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// malformed are paths that no kubelet names for the volume. {target} is its target, {pod} its pod's directory, {kubelet} the kubelet's and
// {outside} one that is nobody's business.
func malformed() []string {
	return []string{
		"", "/", ".", "..", "x", "{kubelet}", "{kubelet}/pods", "{pod}", "{pod}/volumes", "{target}/", "{target}/mount", "/{target}",
		"{target}/../mount", "{target}/../../../../../../../outside/empty", "{target}/../../linked/mount", "{kubelet}/../outside/empty",
		"{outside}", "{outside}/empty", "{outside}/new", "{outside}/ours", "{outside}/file", "{kubelet}/plugins/ours", "{kubelet}/plugins/new",
		"{pod}/volumes/kubernetes.io~csi/./mount", "{pod}/volumes/kubernetes.io~csi/../mount", "{pod}/volumes/kubernetes.io~csi//mount",
		"{pod}/volumes/kubernetes.io~csi/settings", "{pod}/volumes/kubernetes.io~csi/settings/vol_data.json",
		"{pod}/volumes/kubernetes.io~empty-dir/cache", "{pod}/volumes/kubernetes.io~empty-dir/cache/mount",
		"{pod}/volumes/kubernetes.io~empty-dir/up/outside/empty", "{kubelet}/pods/volumes/kubernetes.io~csi/x/mount",
		"{kubelet}/pods/./volumes/kubernetes.io~csi/x/mount", "{kubelet}/pods/../volumes/kubernetes.io~csi/x/mount",
		"/proc/self/root{outside}/empty", "/proc/self/cwd", "{target}\x00", "{kubelet}\x00/pods/x/volumes/kubernetes.io~csi/settings/mount",
		"{target}\n", "KUBELET/pods", "{pod}/volumes/kubernetes.io~csi/" + strings.Repeat("x", 256) + "/mount",
		"/" + strings.Repeat("x/", 4096), "{target}" + strings.Repeat("/../mount", 500),
	}
}

// TestMalformedCalls: no call whose path or pod is not the volume's own, or at whose path a link is, changes anything on the node. It runs
// by itself, as it compares all mounts of the namespace.
func TestMalformedCalls(t *testing.T) {
	n := lab.NewNode(t)
	n.Value("app")
	bystander, v := n.Published("app"), n.Short("app")
	must.Do(t, errors.Join(n.StorePod(t.Context(), v), n.Prepare(v)))
	top := filepath.Dir(n.KubeletDir())
	makeDecoys(n, v, top)
	before := everything(t, top)
	unchanged := func(after string) {
		t.Helper()
		now := everything(t, top)
		maps.DeleteFunc(now, func(path, is string) bool { return before[path] == is })
		for path, is := range now {
			t.Errorf("after %.200q: %s was %q, is %q", after, path, before[path], is)
		}
		if len(now) > 0 {
			t.FailNow()
		}
	}
	call := func(v *harness.Volume, path, uid string) error {
		request := n.PublishRequest(v)
		request.TargetPath, request.VolumeContext["csi.storage.k8s.io/pod.uid"] = path, uid
		_, err := n.CSI().NodePublishVolume(t.Context(), request)
		unchanged("publish at " + path)
		return err
	}
	end := func(id, path string) error {
		_, err := n.CSI().NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: path})
		unchanged("unpublish of " + id + " at " + path)
		return err
	}
	ids := []string{v.ID(), bystander.ID(), "csi-decoy"}
	pod := filepath.Join(n.KubeletDir(), "pods", v.UID)
	for _, path := range malformed() {
		path = strings.NewReplacer("{target}", n.Target(v), "{pod}", pod, "{kubelet}", n.KubeletDir(), "{outside}", top+"/outside").Replace(path)
		wantMalformed(t, call(v, path, v.UID))
		for _, id := range ids {
			wantMalformed(t, end(id, path))
		}
		_, err := n.CSI().NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.ID(), VolumePath: path})
		if code := status.Code(err); path != "" && code != codes.NotFound { // as CSI has it
			t.Errorf("stats: got %s", code)
		}
	}
	for _, uid := range []string{bystander.UID, "", ".", "..", "../pods/" + v.UID, v.UID + "/../" + v.UID, "link"} {
		wantMalformed(t, call(v, n.Target(v), uid))
	}
	for _, name := range []string{"linked", "pointing", "taken"} { // of the form of a target
		decoy := *v
		decoy.Name = name
		must.Do(t, n.StorePod(t.Context(), &decoy))
		if call(&decoy, n.Target(&decoy), v.UID) == nil {
			t.Errorf("%s: no error", name)
		}
		for _, id := range append(ids, decoy.ID()) {
			_ = end(id, n.Target(&decoy)) // nothing of the id is there, which may be told or not
		}
	}

	n.MustPublish(v) // which none of these calls prevents
	n.MustUnpublish(bystander)
	if maps.Equal(everything(t, top), before) {
		t.Error("nothing is seen of a publish")
	}
}

// makeDecoys makes what other volumes and plugins have, what carries the plugin's source but is at no target, and what somebody may have
// prepared for a plugin that follows links.
func makeDecoys(n *world.Node, v *harness.Volume, top string) {
	n.T.Helper()
	volumes := filepath.Join(n.KubeletDir(), "pods", v.UID, "volumes")
	var errs []error
	for _, dir := range []string{
		top + "/outside/empty", top + "/outside/volume/mount", top + "/outside/ours", n.KubeletDir() + "/plugins/ours",
		volumes + "/kubernetes.io~csi/pointing", volumes + "/kubernetes.io~csi/taken/mount", volumes + "/kubernetes.io~empty-dir/cache/mount",
	} {
		errs = append(errs, os.MkdirAll(dir, 0o755))
	}
	ours := []string{top + "/outside/ours", n.KubeletDir() + "/plugins/ours"}
	for _, dir := range ours {
		errs = append(errs, unix.Mount(harness.DriverName+":csi-decoy", dir, "tmpfs", 0, "size=64k"))
	}
	for _, file := range append(ours, top+"/outside", volumes+"/kubernetes.io~csi/taken/mount", volumes+"/kubernetes.io~empty-dir/cache") {
		errs = append(errs, os.WriteFile(file+"/file", []byte("precious"), 0o600))
	}
	for link, to := range map[string]string{
		volumes + "/kubernetes.io~csi/linked":         top + "/outside/volume",
		volumes + "/kubernetes.io~csi/pointing/mount": top + "/outside/empty",
		volumes + "/kubernetes.io~empty-dir/up":       "../../../../..",
		n.KubeletDir() + "/pods/link":                 v.UID,
	} {
		errs = append(errs, os.Symlink(to, link))
	}
	must.Do(n.T, errors.Join(errs...))
}

// everything describes every name below a directory but the log, also in mounts, and every mount of the namespace by its id. The time of the
// last change tells of what was written, or made in a directory and is gone again.
func everything(t *testing.T, top string) map[string]string {
	t.Helper()
	all := map[string]string{}
	const format = `%p\t%M, inode %i, %s bytes, changed at %T@, %l\0`
	found := must.Get(exec.CommandContext(t.Context(), "find", top, "!", "-name", "plugin.log", "-printf", format).Output())(t)
	for line := range strings.SplitSeq(string(found), "\x00") {
		path, is, _ := strings.Cut(line, "\t")
		all[path] = is
	}
	for _, m := range must.Get(harness.Mounts())(t) {
		all["mount "+m.ID] = fmt.Sprint(m)
	}
	all["names and mounts"] = fmt.Sprint(len(all)) // so that nothing is missing
	return all
}

// wantMalformed wants a refusal that names the field, and whose text can be shown as it is.
func wantMalformed(t *testing.T, err error) {
	t.Helper()
	text := status.Convert(err).Message()
	named := strings.Contains(text, "target_path: ") || strings.Contains(text, "pod.uid]: ")
	if code := status.Code(err); code != codes.InvalidArgument || !named {
		t.Errorf("got %s: %.200q", code, text)
	}
	if len(text) > 64<<10 || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
		t.Errorf("a text of %d bytes, or with what can't be printed: %.200q", len(text), text)
	}
}
