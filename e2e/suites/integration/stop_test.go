package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// drainTime is what the plugin gives the calls under way at a stop, and a busy machine
	// some more.
	drainTime = 20 * time.Second
	// burstObjects have burstKeys keys each, that change together.
	burstObjects, burstKeys = 10, 3
	// comers are how many go on to publish and unpublish until the plugin has gone.
	comers = 8
)

// TestStopDuringABurst sends SIGTERM at a random moment of 200 publishes, of which some
// wait for objects that don't exist, of 40 unpublishes and of updates all the time. Others
// go on to come while the plugin stops.
func TestStopDuringABurst(t *testing.T) {
	t.Parallel()
	n, dice := newNode(t, "-v=2"), harness.Rand(t)
	var drained, met int64
	defer func() {
		t.Logf("of the calls that kept coming, the stopping plugin answered %d from before SIGTERM and %d from after it", drained, met)
		if drained+met == 0 {
			t.Error("no call of those that kept coming was answered by a stopping plugin")
		}
	}()
	for round := range harness.Scaled(2, 30) {
		b := newBurst(n, round)
		b.prepare()
		b.run(dice)
		b.wantNothingHalfMade()
		b.again()
		drained += b.drained.Load()
		met += b.met.Load()
	}
}

// burst is one round: its volumes and what became of their calls.
type burst struct {
	*node
	round int
	// late are volumes whose object comes after the stop; comes and goes are published
	// and unpublished.
	late, comes, goes []*harness.Volume
	// stays are those that only follow their objects.
	stays []*harness.Volume

	// signalled is set before the plugin is told to stop. Of the comers' calls that the
	// plugin answered after that, drained began before and met after it.
	signalled    atomic.Bool
	drained, met atomic.Int64

	// mu guards failed, and comes and goes while calls run.
	mu     sync.Mutex
	failed map[*harness.Volume]error
}

func newBurst(n *node, round int) *burst {
	b := &burst{node: n, round: round, failed: map[*harness.Volume]error{}}
	for i := range 50 {
		b.late = append(b.late, n.short(fmt.Sprintf("late-%d-%d", round, i)))
	}
	for i := range 150 {
		b.comes = append(b.comes, n.short(burstObject(i)))
	}
	for i := range 40 {
		b.goes = append(b.goes, n.short(burstObject(i)))
		b.stays = append(b.stays, n.short(burstObject(i)))
	}
	return b
}

func burstObject(i int) string { return fmt.Sprint("app-", i%burstObjects) }

// burstData are keys of one value, so that a mixture of two versions shows.
func burstData(value string) map[string]string {
	data := make(map[string]string, burstKeys)
	for i := range burstKeys {
		data[fmt.Sprint("key-", i)] = value
	}
	return data
}

// prepare publishes what is to be there before the burst.
func (b *burst) prepare() {
	b.t.Helper()
	for i := range burstObjects {
		b.configMap(burstObject(i), burstData(fmt.Sprintf("%d before", b.round)))
	}
	var calls sync.WaitGroup
	b.start(&calls, b.goes, b.Publish, nil)
	b.start(&calls, b.stays, b.Publish, nil)
	calls.Wait()
	b.wantNoFailure()
}

// start makes a call for each volume in the background; done hears of each answer.
func (b *burst) start(calls *sync.WaitGroup, volumes []*harness.Volume, call func(context.Context, *harness.Volume) error, done func()) {
	for _, v := range volumes {
		calls.Go(func() {
			if err := call(b.t.Context(), v); err != nil {
				b.mu.Lock()
				b.failed[v] = err
				b.mu.Unlock()
			}
			if done != nil {
				done()
			}
		})
	}
}

func (b *burst) wantNoFailure() {
	b.t.Helper()
	for v, err := range b.failed {
		b.t.Fatalf("round %d: %s: %v", b.round, v.ID(), err)
	}
}

// run makes all calls at once, and has the plugin end once a random number of them has
// been answered.
func (b *burst) run(dice *rand.Rand) {
	b.t.Helper()
	ending := len(b.comes) + len(b.goes) // the others wait
	at := int64(dice.IntN(ending))
	var answers atomic.Int64
	moment := make(chan struct{})
	count := func() {
		if answers.Add(1) == at {
			close(moment)
		}
	}
	if at == 0 {
		close(moment)
	}
	stopUpdates := b.update()
	var calls sync.WaitGroup
	b.start(&calls, b.late, b.Publish, nil)
	b.start(&calls, b.comes, b.Publish, count)
	b.start(&calls, b.goes, b.Unpublish, count)
	for i := range comers {
		calls.Go(func() { b.keepComing(i) })
	}
	<-moment
	took := b.terminate(&calls)
	stopUpdates()
	b.t.Logf("round %d: SIGTERM after %d answers, %d calls failed, the end %s later", b.round, at, len(b.failed), took.Round(time.Millisecond))
	b.wantNonFinal()
}

// terminate sends SIGTERM and returns how long the plugin then took to end. Calls go on
// to be made meanwhile, so the connection stays until the last of them has its answer.
func (b *burst) terminate(calls *sync.WaitGroup) time.Duration {
	b.t.Helper()
	b.signalled.Store(true)
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
	calls.Wait()
	if err := b.Terminate(b.t.Context()); err != nil { // fails unless the status was 0
		b.t.Fatal(err)
	}
	return took
}

// keepComing publishes and unpublishes volumes of one object until a call fails, as one
// does once the plugin has gone.
func (b *burst) keepComing(object int) {
	for {
		v := b.short(burstObject(object))
		v.Unknown = true // to store its pod would take most of the time
		if !b.comer(v, b.Publish, &b.comes) || !b.comer(v, b.Unpublish, &b.goes) {
			return
		}
	}
}

// comer makes one call and says whether it succeeded. A volume whose call failed joins
// those of its kind.
func (b *burst) comer(v *harness.Volume, call func(context.Context, *harness.Volume) error, kind *[]*harness.Volume) bool {
	before := !b.signalled.Load()
	err := call(b.t.Context(), v)
	if err == nil {
		switch {
		case !before:
			b.met.Add(1)
		case b.signalled.Load():
			b.drained.Add(1)
		}
		return true
	}
	if !b.signalled.Load() {
		b.t.Errorf("round %d: a call on %s failed before SIGTERM: %v", b.round, v.ID(), err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed[v] = err
	*kind = append(*kind, v)
	return false
}

// update changes all objects, over and over, until the returned function is called. The
// first error ends that and fails the test.
func (b *burst) update() (stop func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	var running sync.WaitGroup
	var err error
	running.Go(func() {
		for i := 0; ctx.Err() == nil && err == nil; i++ {
			_, err = b.tryConfigMap(&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: burstObject(i)},
				Data:       burstData(fmt.Sprintf("%d burst %d", b.round, i)),
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

// again starts the plugin, repeats every call that failed, and ends all volumes.
func (b *burst) again() {
	b.t.Helper()
	b.mustStart()
	for i := range b.late {
		b.configMap(fmt.Sprintf("late-%d-%d", b.round, i), burstData("late"))
	}
	var publish, unpublish []*harness.Volume
	for v := range b.failed {
		if slices.Contains(b.goes, v) {
			unpublish = append(unpublish, v)
		} else {
			publish = append(publish, v)
		}
	}
	b.failed = map[*harness.Volume]error{}
	var calls sync.WaitGroup
	b.start(&calls, publish, b.Publish, nil)
	b.start(&calls, unpublish, b.Unpublish, nil)
	calls.Wait()
	b.wantNoFailure()
	b.wantMounts(len(b.late) + len(b.comes) + len(b.stays))
	for _, v := range b.late {
		b.wantContent(v, "key-0", "late")
	}
	value := fmt.Sprintf("%d after", b.round)
	for i := range burstObjects {
		b.configMap(burstObject(i), burstData(value))
	}
	for _, v := range append(b.comes, b.stays...) {
		b.arrives(v, "key-0", value, soon)
	}
	for _, volumes := range [][]*harness.Volume{b.late, b.comes, b.stays} {
		b.start(&calls, volumes, b.Unpublish, nil)
	}
	calls.Wait()
	b.wantNoFailure()
	b.wantNothingLeft()
}
