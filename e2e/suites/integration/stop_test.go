package integration

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// drainTime is what the plugin gives the calls under way at a stop.
	drainTime = 20 * time.Second
	// burstObjects have burstKeys keys each, that change together.
	burstObjects, burstKeys = 10, 3
	// maxGenerations is how many may be there: those of three seconds, 25 ms apart, and one that was being made.
	maxGenerations = 3*40 + 1
)

// TestStopDuringABurst sends SIGTERM at a random moment of 200 publishes, of which 50 wait for objects that don't exist, of
// 40 unpublishes and of updates all the time, while others go on to come. No answer is final, and nothing is half made.
func TestStopDuringABurst(t *testing.T) {
	t.Parallel()
	n, dice := newNode(t, "-v=2"), harness.Rand(t)
	var answered int64
	for round := range harness.Scaled(1, 30) {
		b := &burst{node: n, name: fmt.Sprint("round ", round), failed: map[*harness.Volume]error{}}
		for i := range 150 {
			b.comes = append(b.comes, b.short(burstObject(i)))
			if i < 50 {
				b.late = append(b.late, b.short(fmt.Sprintf("late-%d-%d", round, i)))
			}
			if i < 40 {
				b.goes, b.stays = append(b.goes, b.short(burstObject(i))), append(b.stays, b.short(burstObject(i)))
			}
		}
		b.run(dice.IntN(len(b.comes) + len(b.goes)))
		b.wantNothingHalfMade()
		b.again()
		answered += b.answered.Load()
	}
	if answered == 0 {
		t.Error("no call of those that kept coming was answered by a stopping plugin")
	}
}

// burst is one round: its volumes and what became of their calls.
type burst struct {
	*node
	name string
	// late are volumes whose object comes after the stop; stays only follow their objects.
	late, comes, goes, stays []*harness.Volume
	// stops is set before SIGTERM; answered counts successes of those that keep coming after that.
	stops    atomic.Bool
	answered atomic.Int64
	// mu guards failed, and comes and goes while calls run.
	mu     sync.Mutex
	failed map[*harness.Volume]error
}

type csiCall func(context.Context, *harness.Volume) error

func burstObject(i int) string { return fmt.Sprint("app-", i%burstObjects) }

// burstData are keys of one value, so that a mixture of two versions shows.
func burstData(value string) map[string]string {
	data := make(map[string]string, burstKeys)
	for i := range burstKeys {
		data[fmt.Sprint("key-", i)] = value
	}
	return data
}

// call makes a call, and notes a failure.
func (b *burst) call(call csiCall, v *harness.Volume) error {
	err := call(b.t.Context(), v)
	if err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.failed[v] = err
	}
	return err
}

// all makes a call for each volume, all at once, and wants success.
func (b *burst) all(call csiCall, volumes ...*harness.Volume) {
	b.t.Helper()
	if err := inParallel(len(volumes), len(volumes), func(i int) error { return call(b.t.Context(), volumes[i]) }); err != nil {
		b.t.Fatalf("%s: %v", b.name, err)
	}
}

// run makes all calls at once, and has the plugin end once so many of them have been answered.
func (b *burst) run(at int) {
	b.t.Helper()
	for i := range burstObjects {
		b.configMap(burstObject(i), burstData(b.name+" before"))
	}
	b.all(b.Publish, slices.Concat(b.goes, b.stays)...)
	// Pods are stored one after another. They are stored first, so that the calls come all at once.
	b.all(b.StorePod, slices.Concat(b.late, b.comes)...)
	stopUpdates := b.update()
	var calls sync.WaitGroup
	var answers atomic.Int64
	start := func(call csiCall, volumes []*harness.Volume) {
		for _, v := range volumes {
			calls.Go(func() { _ = b.call(call, v); answers.Add(1) })
		}
	}
	start(b.Publish, b.late) // have no answer before the stop
	start(b.Publish, slices.Clone(b.comes))
	start(b.Unpublish, slices.Clone(b.goes))
	for i := range 8 {
		calls.Go(func() { b.keepComing(i) })
	}
	harness.Eventually(b.t, soon, func() error {
		if got := answers.Load(); got < int64(at) {
			return fmt.Errorf("%d calls were answered, want %d", got, at)
		}
		return nil
	})
	b.stops.Store(true)
	begin := time.Now()
	if err := b.Process().Signal(syscall.SIGTERM); err != nil {
		b.t.Fatal(err)
	}
	select {
	case <-b.Process().Done():
	case <-time.After(drainTime + soon):
		b.t.Errorf("the plugin has not ended after %s: %v", time.Since(begin), b.Process().Kill())
	}
	took := time.Since(begin)
	calls.Wait() // their connection stays until the last has its answer
	stopUpdates()
	if err := b.Terminate(b.t.Context()); err != nil { // fails unless the status was 0
		b.t.Fatal(err)
	}
	b.t.Logf("%s: SIGTERM after %d answers, %d calls failed, the end %s later", b.name, at, len(b.failed), took.Round(time.Millisecond))
}

// keepComing publishes and unpublishes volumes of one object until a call fails, as one does once the plugin has gone. A
// volume whose call failed joins those of its kind.
func (b *burst) keepComing(object int) {
	for {
		v := b.short(burstObject(object))
		v.Unknown = true // to store its pod would take most of the time
		for _, c := range []struct {
			call csiCall
			kind *[]*harness.Volume
		}{{b.Publish, &b.comes}, {b.Unpublish, &b.goes}} {
			if err := b.call(c.call, v); err != nil {
				if !b.stops.Load() {
					b.t.Errorf("%s: a call on %s failed before SIGTERM: %v", b.name, v.ID(), err)
				}
				b.mu.Lock()
				*c.kind = append(*c.kind, v)
				b.mu.Unlock()
				return
			}
			if b.stops.Load() {
				b.answered.Add(1)
			}
		}
	}
}

// update changes all objects, over and over, until the returned function is called or an error, which fails the test.
func (b *burst) update() (stop func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	var running sync.WaitGroup
	var err error
	running.Go(func() {
		for i := 0; ctx.Err() == nil && err == nil; i++ {
			_, err = b.tryConfigMap(&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: burstObject(i)}, Data: burstData(fmt.Sprint(b.name, " burst ", i)),
			})
		}
	})
	return func() {
		cancel()
		running.Wait()
		if err != nil {
			b.t.Error(err)
		}
	}
}

// wantNothingHalfMade compares what the plugin left with its answers: each mount is complete, there is nothing else, and
// after each failure the kubelet goes on to take the volume for one that may be there.
func (b *burst) wantNothingHalfMade() {
	b.t.Helper()
	mounts, err := b.VolumeMounts()
	if err != nil {
		b.t.Fatal(err)
	}
	mounted := map[string]int{}
	for _, m := range mounts {
		mounted[m.Target]++
	}
	for kind, volumes := range map[string][]*harness.Volume{"late": b.late, "comes": b.comes, "goes": b.goes, "stays": b.stays} {
		for _, v := range volumes {
			count, failure := mounted[b.Target(v)], b.failed[v]
			delete(mounted, b.Target(v))
			final := !slices.Contains([]codes.Code{codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted}, status.Code(failure))
			isThere, late := kind == "comes" || kind == "stays", kind == "late"
			if final || count > 1 || failure == nil && (late || count == 1 != isThere) || late && count > 0 {
				b.t.Errorf("%s: a volume that %s: %d mounts at %s, the answer was %v", b.name, kind, count, b.Target(v), failure)
			}
			if count > 0 {
				b.wantWhole(v)
			} else if _, err := os.Lstat(b.Target(v)); !os.IsNotExist(err) {
				b.t.Errorf("%s: left of a target that is not mounted: %s (%v)", b.name, b.Target(v), err)
			}
		}
	}
	if len(mounted) > 0 {
		b.t.Errorf("%s: left of volumes that were unpublished: %v", b.name, mounted)
	}
}

// wantWhole checks all that is mounted at the place of a volume.
func (b *burst) wantWhole(v *harness.Volume) {
	b.t.Helper()
	entries, err := harness.List(b.Target(v))
	if err != nil {
		b.t.Fatal(err)
	}
	generations, links := map[string]map[string]string{}, 0
	for _, e := range entries {
		top, name, _ := strings.Cut(e.Path, "/")
		switch {
		case e.Path == "..data" || !strings.HasPrefix(top, ".."):
			links++
		case e.Mode.IsDir():
			generations[top] = map[string]string{}
		case generations[top] == nil:
			b.t.Errorf("%s: %s holds %s", b.name, v.ID(), e.Path)
		default:
			generations[top][name] = e.Content
		}
	}
	if links != burstKeys+1 || len(generations) == 0 || len(generations) > maxGenerations {
		b.t.Errorf("%s: %s has %d links and %d generations", b.name, v.ID(), links, len(generations))
	}
	for name, files := range generations {
		if value := files["key-0"]; value == "" || !maps.Equal(files, burstData(value)) {
			b.t.Errorf("%s: generation %s of %s is not whole: %q", b.name, name, v.ID(), files)
		}
	}
}

// again starts the plugin, repeats every call that failed, and ends all volumes.
func (b *burst) again() {
	b.t.Helper()
	b.mustStart()
	var publish, unpublish []*harness.Volume
	for v := range b.failed {
		if slices.Contains(b.goes, v) {
			unpublish = append(unpublish, v)
		} else {
			publish = append(publish, v)
		}
	}
	for _, v := range b.late {
		b.configMap(v.Attributes["configMap"], burstData("late"))
	}
	b.all(b.Publish, publish...)
	b.all(b.Unpublish, unpublish...)
	b.wantMounts(len(b.late) + len(b.comes) + len(b.stays))
	for _, v := range b.late {
		b.wantContent(v, "key-0", "late")
	}
	for i := range burstObjects {
		b.configMap(burstObject(i), burstData(b.name+" after"))
	}
	for _, v := range slices.Concat(b.comes, b.stays) {
		b.arrives(v, "key-0", b.name+" after", soon)
	}
	b.all(b.Unpublish, slices.Concat(b.late, b.comes, b.stays)...)
	b.wantNothingLeft()
}
