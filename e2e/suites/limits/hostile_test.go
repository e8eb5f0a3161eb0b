package limits

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// hostileSources ask for as much as they can, some for more than is ever made.
func hostileSources() []string {
	prefix := strings.Repeat(".", 60000)
	var items strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&items, "{key: k1, path: %sf%d},", strings.Repeat("a/", i%8), i)
	}
	return []string{
		"[" + strings.Repeat("{configMap: {name: many}},", 30) + "]",
		"[" + strings.Repeat("{configMap: {name: many}},", 256) + "]",
		"[{env: {path: e, envFrom: [{prefix: " + prefix + ", configMapRef: {name: many}}]}}]",
		"[{env: {path: e, format: shell, envFrom: [" + strings.Repeat("{configMapRef: {name: large}},", 30) + "]}}]",
		"[{env: {path: e, envFrom: [{prefix: " + strings.Repeat(".", 250) + ", configMapRef: {name: many}}]}}]",
		"[{configMap: {name: many, items: [" + items.String() + "]}}]",
	}
}

// The pods of one author, all of a node, ask for as much as they can, over and over: the plugin's memory stays bounded, and another
// author's publishes beside them each wait for a few of theirs only.
func TestHostilePublishesBesidePlainOnes(t *testing.T) {
	hostilePods := harness.Scaled(30, 110) // the latter as many as a kubelet runs by default
	n := lab.NewPlain(t)                   // its memory is that of a release
	n.Value("plain")
	many, large := map[string]string{}, map[string]string{}
	for i := range 7000 {
		many[fmt.Sprint("k", i)] = ""
	}
	for i := range 900 {
		large[fmt.Sprint("K", i)] = strings.Repeat("'", 1000)
	}
	n.ConfigMap("many", many)
	n.ConfigMap("large", large)

	published := []*harness.Volume{n.Published("plain")}
	before := mostResident(n)
	var hostile sync.WaitGroup
	var answered atomic.Int64
	var ends atomic.Bool
	volumes, answers := make([]*harness.Volume, hostilePods), make([]error, hostilePods)
	sources := hostileSources()
	for i := range volumes {
		volumes[i] = n.Volume(map[string]string{"sources": sources[i%len(sources)]})
		hostile.Go(func() {
			for {
				answers[i] = n.Publish(t.Context(), volumes[i])
				answered.Add(1)
				if ends.Load() {
					return
				}
				if err := n.Unpublish(t.Context(), volumes[i]); err != nil {
					answers[i] = err
					return
				}
			}
		})
	}
	for range 5 {
		begun := answered.Load()
		published = append(published, n.Published("plain"))
		// It waits for three turns, in a line in which each of the others is once: measured are up to 30 answers.
		if waited := answered.Load() - begun; waited > int64(3*hostilePods) {
			t.Errorf("%d publishes of %d hostile pods had an answer before a plain one", waited, hostilePods)
		}
	}
	ends.Store(true)
	hostile.Wait()
	grown := mostResident(n) - before
	outcomes := map[codes.Code]int{}
	for _, err := range answers {
		outcomes[status.Code(err)]++
	}
	t.Logf("%d publishes: %v; the memory grew from %d by %d MiB", hostilePods, outcomes, before>>20, grown>>20)

	// That is generous, for what these renders take, and for the garbage among it. Each pod may have one
	// rendered tree that waits to be written, of 1.2 MiB.
	if most := int64(4*64<<20 + hostilePods*3<<19); grown > most {
		t.Errorf("the memory grew by %d MiB, more than %d", grown>>20, most>>20)
	}
	isOK, refused := outcomes[codes.OK], outcomes[codes.OutOfRange]+outcomes[codes.InvalidArgument]
	if isOK == 0 || refused == 0 || isOK+refused != hostilePods {
		t.Errorf("the answers are %v, want some OK and some of too much", outcomes)
	}
	n.UnpublishAll(slices.Concat(volumes, published))
}

// mostResident returns the bytes of memory that the plugin had at most.
func mostResident(n *world.Node) int64 {
	n.T.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", n.PID())))(n.T)
	_, most, _ := strings.Cut(string(text), "\nVmHWM:")
	var kibibytes int64
	must.Get(fmt.Sscan(most, &kibibytes))(n.T)
	return kibibytes << 10
}

// delegation is what F_SETDELEG takes, since Linux 6.19.
type delegation struct {
	_ uint32
	kind,
	_ uint16
}

const setDelegation = 1024 + 16 // F_SETDELEG

// delegate has this process hold a delegation on the volume's directory, as a container may that runs as its owner. The returned function
// ends it. It skips the test where the kernel has none.
func delegate(t *testing.T, dir string) (end func()) {
	t.Helper()
	f := must.Get(os.Open(dir))(t)
	t.Cleanup(func() { f.Close() })
	d := delegation{kind: unix.F_RDLCK}
	_, _, errno := unix.Syscall(unix.SYS_FCNTL, f.Fd(), setDelegation, uintptr(unsafe.Pointer(&d)))
	if errors.Is(errno, unix.EINVAL) {
		t.Skip("SKIP: needs delegations, of Linux 6.19; make test-kernels KERNELS=newest has them")
	}
	if errno != 0 {
		t.Fatalf("hold a delegation on %s: %v", dir, errno)
	}
	return func() { must.Do(t, f.Close()) }
}

// Containers that hold delegations on their volumes' directories delay the updates of these, and of no other volume.
func TestDelegations(t *testing.T) {
	const hostile = 8
	const later = 30 * time.Second // on an emulated processor; a delegation holds a write up for 45 s
	n := lab.NewNode(t)
	n.ConfigMap("app", map[string]string{"key": "1"})
	plain := n.Published("app")
	var volumes []*harness.Volume
	var ends []func()
	for range hostile {
		v := n.Published("app")
		volumes, ends = append(volumes, v), append(ends, delegate(t, n.Target(v)))
	}
	since := time.Now()
	n.ConfigMap("app", map[string]string{"key": "2"})
	n.Arrives(plain, "key", "2", later)
	n.ConfigMap("app", map[string]string{"key": "3"})
	n.Arrives(plain, "key", "3", later)
	took := time.Since(since)
	for _, v := range volumes {
		n.WantContent(v, "key", "1") // else nothing was held up
	}
	t.Logf("two updates took %s beside %d volumes whose writes hang", took, hostile)

	for _, end := range ends {
		end()
	}
	for _, v := range volumes {
		n.Arrives(v, "key", "3", time.Minute)
	}
	n.UnpublishAll(append(volumes, plain))
}

// TestOnePodsLog: a pod whose publishes fail over and over gets a part of their lines in the log, and not one for each call.
func TestOnePodsLog(t *testing.T) {
	const calls = 300
	n := lab.NewNode(t)
	v := n.Volume(map[string]string{"configMap": "app", "no-such-attribute": "x"})
	for range calls {
		if err := n.Publish(t.Context(), v); status.Code(err) != codes.InvalidArgument {
			t.Fatalf("the publish ended with %v", err)
		}
	}
	if lines := bytes.Count(n.Log(), []byte("CSI call failed")); lines == 0 || lines > calls/2 {
		t.Errorf("%d calls failed, and the log has %d lines about them", calls, lines)
	}
}
