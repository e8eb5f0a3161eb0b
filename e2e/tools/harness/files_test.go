package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestParseMount(t *testing.T) {
	for _, tc := range []struct {
		name, line string
		want       Mount
		wantErr    bool
	}{
		{
			name: "optional fields",
			line: `36 35 98:0 /m /a\040b rw,noatime master:1 shared:2 - tmpfs csi.refvol.dev:x ro,size=1k`,
			want: Mount{ID: "36", Target: "/a b", Options: "rw,noatime", SuperOptions: "ro,size=1k", Type: "tmpfs", Source: "csi.refvol.dev:x"},
		},
		{
			name: "no optional field",
			line: `1 0 0:1 / / ro - rootfs none rw`,
			want: Mount{ID: "1", Target: "/", Options: "ro", SuperOptions: "rw", Type: "rootfs", Source: "none"},
		},
		{
			name: "blanks that the kernel does not escape, and no source",
			line: "1 0 0:1 / /a\f\u0085\v\r/b ro - tmpfs  rw",
			want: Mount{ID: "1", Target: "/a\f\u0085\v\r/b", Options: "ro", SuperOptions: "rw", Type: "tmpfs"},
		},
		{name: "torn", line: `36 35 98:0 /m /a rw,noatime master:1`, wantErr: true},
		{name: "empty", line: ``, wantErr: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseMount(tc.line)
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

// volumeLike makes what a volume looks like.
func volumeLike(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "..1", "conf"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "..1", "key"), []byte("value"), 0o640))
	must(os.WriteFile(filepath.Join(dir, "..1", "conf", "app"), nil, 0o400))
	must(os.Symlink("..1", filepath.Join(dir, "..data")))
	must(os.Symlink("..data/key", filepath.Join(dir, "key")))
	must(os.Symlink("..data/conf", filepath.Join(dir, "conf")))
	return dir
}

func TestList(t *testing.T) {
	entries, err := List(volumeLike(t))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, fmt.Sprintf("%s %s %s%s", e.Mode, e.Path, e.Link, e.Content))
	}
	want := []string{
		"drwxr-xr-x ..1 ",
		"drwxr-xr-x ..1/conf ",
		"-r-------- ..1/conf/app ",
		"-rw-r----- ..1/key value",
		"Lrwxrwxrwx ..data ..1",
		"Lrwxrwxrwx conf ..data/conf",
		"Lrwxrwxrwx key ..data/key",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestFilesFollowsLinksAndHidesTheWorkings(t *testing.T) {
	dir := volumeLike(t)
	files, err := Files(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 || files["key"].Content != "value" || files["key"].Mode != 0o640 || files["conf/app"].Mode != 0o400 {
		t.Errorf("got %+v", files)
	}
	if err := os.Symlink("..data/none", filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	if _, err := Files(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("with a dangling link: %v, want an error", err)
	}
}

func TestPoll(t *testing.T) {
	calls := 0
	err := Poll(t.Context(), time.Minute, time.Millisecond, func() error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || calls != 3 {
		t.Errorf("got %v after %d calls, want nil after 3", err, calls)
	}
	never := errors.New("never")
	if err := Poll(t.Context(), 20*time.Millisecond, time.Millisecond, func() error { return never }); !errors.Is(err, never) {
		t.Errorf("got %v, want the last answer", err)
	}
}

func TestVolumeIsAsTheKubeletMakesIt(t *testing.T) {
	p := &Plugin{opts: PluginOptions{Dir: t.TempDir()}}
	v := NewVolume("ns", "pod", map[string]string{"configMap": "app"})
	v.UID, v.MountGroup = "uid-1", "2000"
	req := p.PublishRequest(v)
	if !regexp.MustCompile(`^csi-[0-9a-f]{64}$`).MatchString(req.GetVolumeId()) {
		t.Errorf("volume id = %q, want csi- and a SHA-256", req.GetVolumeId())
	}
	if want := p.KubeletDir() + "/pods/uid-1/volumes/kubernetes.io~csi/settings/mount"; req.GetTargetPath() != want {
		t.Errorf("target = %q, want %q", req.GetTargetPath(), want)
	}
	if !req.GetReadonly() || req.GetVolumeCapability().GetMount().GetVolumeMountGroup() != "2000" {
		t.Errorf("request = %v, want readonly and the mount group", req)
	}
	if got := req.GetVolumeContext(); got["configMap"] != "app" || got["csi.storage.k8s.io/pod.uid"] != "uid-1" || len(got) != 6 {
		t.Errorf("volume context = %v", got)
	}
	if len(v.Attributes) != 1 {
		t.Errorf("the volume's own attributes changed: %v", v.Attributes)
	}

	if err := p.Prepare(v); err != nil {
		t.Fatal(err)
	}
	parent, err := os.Stat(filepath.Dir(p.Target(v)))
	if err != nil {
		t.Fatal(err)
	}
	if parent.Mode().Perm() != 0o750 {
		t.Errorf("mode of the target's parent = %v, want 0750", parent.Mode())
	}
	if err := os.Mkdir(p.Target(v), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := p.CleanUp(v); err == nil {
		t.Error("CleanUp passed over a target that was left behind")
	}
	if err := os.Remove(p.Target(v)); err != nil {
		t.Fatal(err)
	}
	if err := p.CleanUp(v); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(p.KubeletDir(), "pods")); err != nil || len(left) != 0 {
		t.Errorf("left of the pod: %v, %v", left, err)
	}
}

func TestFinalForKubelet(t *testing.T) {
	for code, want := range map[codes.Code]bool{
		codes.InvalidArgument: true, codes.NotFound: true, codes.AlreadyExists: true, codes.Internal: true,
		codes.OutOfRange: true, codes.PermissionDenied: true,
		codes.Aborted: false, codes.Unavailable: false, codes.ResourceExhausted: false,
		codes.DeadlineExceeded: false, codes.Canceled: false,
	} {
		if got := finalForKubelet(status.Error(code, "")); got != want {
			t.Errorf("%s: final = %t, want %t", code, got, want)
		}
	}
	if finalForKubelet(errors.New("no status")) {
		t.Error("an error without a status is final")
	}
}
