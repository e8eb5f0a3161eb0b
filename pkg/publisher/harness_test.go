package publisher

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/fakenode"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/leak/leaklog"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/internal/sandbox"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/writer"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

const (
	testNamespace = "shop"
	testNode      = "node-1"
	testDriver    = "csi.refvol.dev"
	testResync    = time.Minute
	testWait      = 100 * time.Second
	mebibyte      = 1 << 20
	// refusalTime and consentAge are the values of refusalTime and admitAge in package access, the others those of package binding.
	refusalTime = 5 * time.Second
	consentAge  = 5 * time.Second
	refusedTime = time.Minute
	atOnce      = 4
	resyncSlots = 60
)

// guard is the lock of a fake.
type guard struct{ mu sync.Mutex }

func (g *guard) locked(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do()
}

// get returns something of a fake, with its lock.
func get[T any](g *guard, from func() T) (value T) {
	g.locked(func() { value = from() })
	return value
}

// canary stands for a value that may only get into the volume's files.
const canary = leak.Value

// env is a Publisher with fakes for everything below it, except the file system. Its methods fail the test, and must be called from the
// test's own goroutine.
type env struct {
	*testing.T
	ctx     context.Context
	opts    Options
	objects *fakeObjects
	mounts  *fakeMounts
	events  *fakeEvents
	pods    *fakePods
	writes  *faultyWrites
	logs    *leak.Log
	p       *Publisher
	// stop ends Run; nil while it is not running.
	stop func()
}

// each runs tests as subtests, by their names, in one of the ways below.
func each[F any](t *testing.T, in func(t *testing.T, test F), tests map[string]F) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { in(t, test) })
	}
}

// inBubble runs a test with fake time and a running Publisher.
func inBubble(t *testing.T, test func(e *env)) {
	t.Helper()
	inBubbleWith(t, nil, test)
}

// inBubbleOf is inBubble in a subtest.
func inBubbleOf(t *testing.T, name string, test func(e *env)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBubble(t, test) })
}

// inBubbleWith is like inBubble, with other options.
func inBubbleWith(t *testing.T, change func(*Options), test func(e *env)) {
	t.Helper()
	inStoppedBubble(t, change, func(e *env) {
		e.run()
		test(e)
	})
}

// strategies are the values of writeStrategy.
var strategies = []string{"Atomic", "InPlace"}

// inStoppedBubble is like inBubble, with other options and without Run.
func inStoppedBubble(t *testing.T, change func(*Options), test func(e *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newEnv(t, change)) })
}

// newEnv returns a Publisher that is not running yet. change may change its options.
func newEnv(t *testing.T, change func(*Options)) *env {
	t.Helper()
	logs := &leak.Log{}
	logger := leaklog.New(t, logs) // the log is searched when everything below has ended
	e := &env{
		T: t, logs: logs, objects: newFakeObjects(), mounts: newFakeMounts(t), writes: &faultyWrites{}, events: &fakeEvents{}, pods: newFakePods(),
		ctx: klog.NewContext(context.WithoutCancel(t.Context()), logger), // the clean-up needs it too
	}
	e.opts = Options{
		Options: binding.Options{
			Objects: e.objects, Pods: e.pods, Events: e.events, KubeletDir: t.TempDir(), Driver: testDriver, ResyncInterval: testResync,
		},
		Mounts:          e.mounts,
		AttributePrefix: "user.refvol.", // this one needs no root
		NewWriter:       func(opts writer.Options) Writer { return &testWriter{Writer: writer.New(opts), faults: e.writes} },
		NodeName:        testNode,
		PublishWait:     testWait,
		MaxVolumeSize:   mebibyte,
		MaxTotalSize:    16 * mebibyte,
	}
	if change != nil {
		change(&e.opts)
	}
	e.start()
	t.Cleanup(func() {
		e.halt()
		e.wantNoLeak()
		for _, misuse := range e.mounts.Misuse() {
			e.Error(misuse)
		}
		for _, line := range e.logs.With("Something panicked") {
			if !strings.Contains(line, `panicType="string"`) { // the panics that tests make have a string
				e.Errorf("the log has %s", line)
			}
		}
	})
	return e
}

// wantNoLeak fails the test if an event has a value. The logs are searched at the end of the test.
func (e *env) wantNoLeak() {
	e.Helper()
	if err := get(&e.events.guard, func() error { return e.events.leaked }); err != nil {
		e.Error(err)
	}
}

// start creates the Publisher, as a process does at its start.
func (e *env) start() {
	e.Helper()
	e.p = must.Get(New(e.opts))(e)
}

// run starts the Publisher's goroutines.
func (e *env) run() {
	ctx, cancel := context.WithCancel(e.ctx)
	ended := make(chan struct{})
	go func() {
		e.p.Run(ctx)
		close(ended)
	}()
	e.stop = func() { cancel(); <-ended }
}

// halt stops the Publisher, as the end of the process does.
func (e *env) halt() {
	if e.stop != nil {
		e.stop()
		e.stop = nil
	}
	e.p.StopWaiting()
}

// restart replaces the Publisher with one of a new process. Mounts, and the API server's objects and pods, stay. Everything else is lost.
func (e *env) restart() {
	e.Helper()
	e.halt()
	if opens, ok := e.opts.Opens.(*fakenode.Opens); ok {
		opens.Forget()
	}
	if identity, ok := e.opts.Identity.(*fakeIdentity); ok {
		identity.restart()
	}
	e.objects.forgetPods()
	e.start()
	e.must(e.p.Restore(e.ctx))
	e.run()
}

// resume is restart, and waits until nothing happens any more.
func (e *env) resume() {
	e.Helper()
	e.restart()
	e.settle()
}

// lookup returns a known volume, or nil.
func (e *env) lookup(volumeID string) *entry {
	e.p.table.mu.Lock()
	defer e.p.table.mu.Unlock()
	return e.p.table.entries[volumeID]
}

// must fails the test at once with an error.
func (e *env) must(err error) {
	e.Helper()
	must.Do(e, err)
}

func mapOf(pairs []string) map[string]string {
	m := map[string]string{}
	for pair := range slices.Chunk(pairs, 2) {
		m[pair[0]] = pair[1]
	}
	return m
}

// used returns the counted memory of all volumes.
func (e *env) used() int64 { return e.p.table.room.Total() }

// settle waits until nothing happens any more, including a change that was delayed for readers.
func (e *env) settle() {
	synctest.Wait()
	after(readTime)
	synctest.Wait()
}

// wait is after, and waits until nothing happens any more.
func (e *env) wait(d time.Duration) {
	e.Helper()
	after(d)
	e.settle()
}

// rest waits until readers have had their time, and nothing happens any more.
func (e *env) rest() {
	e.wait(3 * pruneTime)
}

// after waits on the bubble's clock.
func after(d time.Duration) { <-time.After(d) }

// recorded returns the versions in the volume's record, and recordOf the whole record.
func (e *env) recorded(r binding.Request) record.Versions {
	e.Helper()
	return e.recordOf(r).Shown
}

func (e *env) recordOf(r binding.Request) record.Record {
	e.Helper()
	root := must.Get(os.OpenRoot(e.mounts.Directory(r.Target)))(e)
	defer root.Close()
	text := must.Get(writer.Record(root, e.opts.AttributePrefix))(e)
	return record.Decode(text, e.lookup(r.VolumeID).vol.binding.Spec().Refs)
}

// setAttribute sets one of the plugin's attributes of a file.
func (e *env) setAttribute(path, name, value string) {
	e.Helper()
	e.must(unix.Setxattr(path, e.opts.AttributePrefix+name, []byte(value), 0))
}

// restartUnread is like restart, but the API server has no pods, so that only a publish shows what was requested.
func (e *env) restartUnread() {
	e.Helper()
	e.pods.removeAll()
	e.resume()
}
