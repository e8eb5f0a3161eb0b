package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/gobuild"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// buildClocked builds a plugin whose wall clock a test can set, with the sources of testdata/clock.
func buildClocked(ctx context.Context, dir string) (string, error) {
	repo, repoErr := harness.Repository()
	goroot, rootErr := gobuild.Go(ctx, repo, nil, "env", "GOROOT")
	source := filepath.Join(goroot, "src", "time", "time.go")
	text, readErr := os.ReadFile(source)
	if err := errors.Join(repoErr, rootErr, readErr); err != nil {
		return "", err
	}
	const now = "\nfunc Now() Time {\n\tsec, nsec, mono := runtimeNow()"
	if strings.Count(string(text), now) != 1 {
		return "", fmt.Errorf("%s has another beginning of Now than %q", source, now)
	}
	// The monotonic part stays as it is, as when somebody sets the clock.
	edited := filepath.Join(dir, "time.go")
	if err := os.WriteFile(edited, []byte(strings.Replace(string(text), now, now+"; sec = shifted(sec)", 1)), 0o600); err != nil {
		return "", err
	}
	added := filepath.Join(repo, "e2e", "suites", "integration", "testdata", "clock")
	return harness.BuildOverlaid(ctx, dir, "refvol-plugin-clock", map[string]string{
		source: edited,
		filepath.Join(filepath.Dir(source), "shifted.go"):         filepath.Join(added, "time.go"),
		filepath.Join(repo, "cmd", "refvol-plugin", "shifted.go"): filepath.Join(added, "main.go"),
	}, os.Stderr)
}

// clockNode is a node whose wall clock a test sets, as far as the plugin sees it. The kernel's own stays, as in the times of files.
type clockNode struct {
	*node
	// shift is by how many seconds the clock is off. The plugin reads it from the same page.
	shift *int64
}

// newClockNode starts a plugin with start.
func newClockNode(t *testing.T, binary string, start func(o harness.PluginOptions) *node, args ...string) *clockNode {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "clock"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(8); err != nil {
		t.Fatal(err)
	}
	page, err := unix.Mmap(int(file.Fd()), 0, 8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(page); err != nil {
			t.Error(err)
		}
	})
	n := start(harness.PluginOptions{
		Binary: binary, Args: append([]string{anyStatusPort}, args...), Env: []string{"REFVOL_TEST_CLOCK=" + file.Name()},
	})
	return &clockNode{node: n, shift: (*int64)(unsafe.Pointer(&page[0]))}
}

// set sets the clock, which is then off by so much.
func (n *clockNode) set(off time.Duration) { atomic.StoreInt64(n.shift, int64(off/time.Second)) }

// off returns by how much the clock is off.
func (n *clockNode) off() time.Duration {
	return time.Duration(atomic.LoadInt64(n.shift)) * time.Second
}

// isSet checks that the plugin sees the clock as it is set: otherwise the test proves nothing.
func (n *clockNode) isSet() {
	n.t.Helper()
	report, err := n.report()
	if err != nil {
		n.t.Fatal(err)
	}
	if got := time.Until(report.ObservedAt); (got - n.off()).Abs() > soon {
		n.t.Fatalf("the plugin's clock is off by %s, want %s", got, n.off())
	}
}
