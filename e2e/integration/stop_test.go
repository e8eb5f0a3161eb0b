package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/e2e/harness"
)

const (
	// drainTime is what the plugin gives the calls under way at a stop.
	drainTime = 20 * time.Second
	// burstObjects have burstKeys keys each, that change together.
	burstObjects, burstKeys = 10, 3
)

// TestStopDuringABurst sends SIGTERM at a random moment of 200 publishes, of which some
// wait for objects that don't exist, of 40 unpublishes and of updates all the time.
func TestStopDuringABurst(t *testing.T) {
	n, dice := newNode(t, "-v=2"), harness.Rand(t)
	for round := range harness.Scaled(3, 30) {
		b := newBurst(n, round)
		b.prepare()
		b.run(dice)
		b.wantNothingHalfMade()
		b.again()
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
	<-moment
	begin := time.Now()
	if err := b.Terminate(b.t.Context()); err != nil { // fails unless the status is 0
		b.t.Fatal(err)
	}
	took := time.Since(begin)
	calls.Wait()
	stopUpdates()
	b.t.Logf("round %d: SIGTERM after %d answers, %d calls failed, the end %s later", b.round, at, len(b.failed), took.Round(time.Millisecond))
	if took > drainTime {
		b.t.Errorf("the plugin took %s to end, want %s at most", took, drainTime)
	}
	b.wantNonFinal()
}

// update changes all objects, over and over, until the returned function is called.
func (b *burst) update() (stop func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			b.configMap(burstObject(i), burstData(fmt.Sprintf("%d burst %d", b.round, i)))
		}
	})
	return func() { cancel(); running.Wait() }
}

// wantNonFinal checks that each call that failed did so in a way after which the kubelet
// goes on to take the volume for one that may be there.
func (b *burst) wantNonFinal() {
	b.t.Helper()
	for v, err := range b.failed {
		switch status.Code(err) {
		case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		default:
			b.t.Errorf("round %d: a call on %s failed with a final answer: %v", b.round, v.ID(), err)
		}
	}
	for _, v := range b.late {
		if b.failed[v] == nil {
			b.t.Errorf("round %d: the publish of %s did not fail, without its object", b.round, v.ID())
		}
	}
}

// wantNothingHalfMade looks at what the plugin left: each mount is complete and has its
// record, and there is nothing else.
func (b *burst) wantNothingHalfMade() {
	b.t.Helper()
	records, err := b.Records()
	if err != nil {
		b.t.Fatal(err)
	}
	stray := make(map[string]bool, len(records))
	for _, name := range records {
		stray[name] = true
	}
	mounts, err := b.VolumeMounts()
	if err != nil {
		b.t.Fatal(err)
	}
	mounted := make(map[string]int, len(mounts))
	for _, m := range mounts {
		mounted[m.Target]++
	}
	there := make(map[*harness.Volume]bool)
	for _, volumes := range [][]*harness.Volume{b.late, b.comes, b.goes, b.stays} {
		for _, v := range volumes {
			record := v.ID() + ".json"
			if mounted[b.Target(v)] > 1 {
				b.t.Errorf("round %d: %d mounts at %s", b.round, mounted[b.Target(v)], b.Target(v))
			}
			there[v] = mounted[b.Target(v)] > 0
			if there[v] != stray[record] {
				b.t.Errorf("round %d: %s is mounted: %t, and has a record: %t", b.round, v.ID(), there[v], stray[record])
			}
			delete(stray, record)
			b.wantWhole(v, there[v])
		}
	}
	for name := range stray {
		b.t.Errorf("round %d: left in the state directory: %s", b.round, name)
	}
	b.wantAsAnswered(there)
}

// wantAsAnswered compares what is there with the calls that succeeded.
func (b *burst) wantAsAnswered(there map[*harness.Volume]bool) {
	b.t.Helper()
	for _, v := range append(b.comes, b.stays...) {
		if b.failed[v] == nil && !there[v] {
			b.t.Errorf("round %d: %s was published and is not there", b.round, v.ID())
		}
	}
	for _, v := range b.goes {
		if b.failed[v] == nil && there[v] {
			b.t.Errorf("round %d: %s was unpublished and is there", b.round, v.ID())
		}
	}
	for _, v := range b.late {
		if there[v] {
			b.t.Errorf("round %d: %s is there, without its object", b.round, v.ID())
		}
	}
}

// wantWhole checks all that is at the place of a volume.
func (b *burst) wantWhole(v *harness.Volume, mounted bool) {
	b.t.Helper()
	if !mounted {
		if _, err := os.Lstat(b.Target(v)); !os.IsNotExist(err) {
			b.t.Errorf("round %d: left of a target that is not mounted: %s (%v)", b.round, b.Target(v), err)
		}
		return
	}
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
			b.t.Errorf("round %d: %s holds %s", b.round, v.ID(), e.Path)
		default:
			generations[top][name] = e.Content
		}
	}
	if links != burstKeys+1 || len(generations) == 0 || len(generations) > 2 {
		b.t.Errorf("round %d: %s has %d links and %d generations", b.round, v.ID(), links, len(generations))
	}
	for name, files := range generations {
		if len(files) != burstKeys {
			b.t.Errorf("round %d: generation %s of %s has %d files", b.round, name, v.ID(), len(files))
		}
		for _, value := range files {
			if value != files["key-0"] {
				b.t.Errorf("round %d: generation %s of %s mixes %q and %q", b.round, name, v.ID(), value, files["key-0"])
			}
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
