package crash

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// On a kernel before 5.12 the plugin doesn't start, and says why.
func TestKernelTooOld(t *testing.T) {
	if err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{}); !errors.Is(err, unix.ENOSYS) {
		t.Skip("SKIP: needs Linux before 5.12; make test-kernels KERNELS=5.10 has it")
	}
	var system unix.Utsname
	must.Do(t, unix.Uname(&system))
	p, err := harness.StartPlugin(t.Context(), harness.PluginOptions{Binary: lab.Plugin, Kubeconfig: lab.Kubeconfig, Dir: world.NodeDir(t)})
	defer func() { must.Do(t, p.Close()) }()
	want := "the kernel is too old: Linux 5.12 or newer is needed, this is " + unix.ByteSliceToString(system.Release[:])
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("start: %v, want an end of which the log says %q", err, want)
	}
	if code := p.Process().ExitCode(); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
}

// takesNoswap says whether a tmpfs can be kept out of swap here: since Linux 6.4, and not in a user namespace.
func takesNoswap(t *testing.T) bool {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount("none", dir, "tmpfs", 0, "noswap")
	if errors.Is(err, unix.EINVAL) {
		return false
	}
	must.Do(t, err)
	must.Do(t, unix.Unmount(dir, 0))
	return true
}

// Without noswap there is one warning a start, and all else is the same. make test-kernels has kernels without it.
func TestKernelWithoutNoswap(t *testing.T) {
	n := lab.NewNode(t)
	noswap := takesNoswap(t)
	n.Value("app")
	v := n.Published("app")
	mounts, err := n.VolumeMounts()
	if err != nil || len(mounts) != 1 {
		t.Fatalf("the mounts are %v, %v, want one", mounts, err)
	}
	if has := strings.Contains(","+mounts[0].SuperOptions+",", ",noswap,"); has != noswap {
		t.Errorf("the options are %s, want noswap: %t", mounts[0].SuperOptions, noswap)
	}
	n.Crash()
	value := n.Value("app")
	n.Arrives(v, "key", value, world.Soon)
	n.MustUnpublish(v)
	n.WantNothingLeft()

	log := n.Log()
	want := 2 // of two starts
	if noswap {
		want = 0
	}
	const warning = "Warning: this kernel refuses noswap here, so values may reach a swap device; turn swap off or encrypt it"
	if got := strings.Count(string(log), warning); got != want {
		t.Errorf("%d warnings in the log, want %d", got, want)
	}
}

// TestNeverVisibleAndIncomplete looks at the targets all the time while volumes are published: a target that is a mount must show
// everything from the first look on.
func TestNeverVisibleAndIncomplete(t *testing.T) {
	n := lab.NewNode(t)
	data := map[string]string{strings.Repeat("k", 253): n.Canary()} // the longest key that the API server takes
	for i := range 50 {
		data[fmt.Sprint("key", i)] = n.Canary()
	}
	n.ConfigMap("app", data)
	const want, most = 3, 300 // looks that come after the answer prove nothing
	seen, published := 0, 0
	for ; seen < want && published < most; published++ {
		v := n.Short("app")
		answer := n.Publishing(v)
		for mounted := false; !mounted; {
			var target, parent unix.Stat_t // both may be on a tmpfs, where /tmp is one
			isAnswered := len(answer) > 0
			if unix.Stat(n.Target(v), &target) != nil || unix.Stat(filepath.Dir(n.Target(v)), &parent) != nil || target.Dev == parent.Dev {
				if isAnswered {
					t.Fatalf("nothing is mounted after the publish, whose error is: %v", n.Answer(answer, world.Soon))
				}
				continue
			}
			mounted = true
			files, err := harness.Files(n.Target(v))
			if err != nil || len(files) != len(data) {
				t.Fatalf("%d files show at the first look, %v, want %d", len(files), err, len(data))
			}
			if len(answer) == 0 {
				seen++
			}
		}
		must.Do(t, n.Answer(answer, world.Soon))
	}
	t.Logf("%d of %d volumes were seen before the answer of their publish", seen, published)
	if seen < want {
		t.Errorf("only %d of %d volumes were seen before the answer of their publish", seen, published)
	}
}
