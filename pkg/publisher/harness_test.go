package publisher

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/fakenode"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/leak/leaklog"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/internal/sandbox"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
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

// request returns a request for a volume of its own pod, for which the kubelet has made a directory. attributes come in pairs. Without any,
// the volume shows the ConfigMap "app".
func (e *env) request(id string, attributes ...string) binding.Request {
	e.Helper()
	uid := "uid-" + id
	if len(attributes) == 0 {
		attributes = []string{"configMap", "app"}
	}
	r := binding.Request{
		VolumeID:   id,
		Target:     filepath.Join(e.opts.KubeletDir, "pods", uid, "volumes/kubernetes.io~csi/settings/mount"),
		Pod:        volume.Pod{Namespace: testNamespace, Name: "pod-" + id, UID: types.UID(uid), ServiceAccount: "default"},
		Attributes: mapOf(attributes),
		ReadOnly:   true,
	}
	e.makeTarget(r)
	return r
}

// inOnePod returns requests for n volumes of one pod.
func (e *env) inOnePod(id string, n int, attributes ...string) (all []binding.Request) {
	e.Helper()
	for i := range n {
		r := e.request(id, attributes...)
		r.VolumeID = fmt.Sprint(id, "-", i)
		r.Target = strings.Replace(r.Target, "/settings/", fmt.Sprint("/settings-", i, "/"), 1)
		e.makeTarget(r)
		all = append(all, r)
	}
	return all
}

// makeTarget creates the directory of a target, as the kubelet does.
func (e *env) makeTarget(r binding.Request) {
	e.Helper()
	e.must(os.MkdirAll(filepath.Dir(r.Target), 0o755))
}

// publish publishes one after another, and expects success.
func (e *env) publish(all ...binding.Request) {
	e.Helper()
	for _, r := range all {
		e.pods.add(r)
		if err := e.p.Publish(e.ctx, r); err != nil {
			e.Fatalf("Publish %s: %v", r.VolumeID, err)
		}
		synctest.Wait() // its reconcile ends a moment later
	}
}

// publishNew publishes a new request.
func (e *env) publishNew(id string, attributes ...string) binding.Request {
	e.Helper()
	r := e.request(id, attributes...)
	e.publish(r)
	return r
}

// publishApp publishes the volume v1 when the ConfigMap "app" has a value for the key a, which is 1.
func (e *env) publishApp(attributes ...string) binding.Request {
	e.Helper()
	e.objects.put(configMap("app"), "a", "1")
	return e.publishNew("v1", attributes...)
}

// update creates or changes an object, and waits until nothing happens any more.
func (e *env) update(ref volume.Ref, pairs ...string) {
	e.Helper()
	e.objects.put(ref, pairs...)
	e.settle()
}

// updateApp is update for the ConfigMap "app", whose keys and values must be all that a volume shows then.
func (e *env) updateApp(r binding.Request, pairs ...string) {
	e.Helper()
	e.update(configMap("app"), pairs...)
	e.wantFiles(r, pairs...)
}

// remove is update for a deletion.
func (e *env) remove(ref volume.Ref) {
	e.Helper()
	e.objects.remove(ref)
	e.settle()
}

// removeFile removes a file of a volume, by a path below its mount.
func (e *env) removeFile(r binding.Request, path ...string) {
	e.Helper()
	e.must(os.Remove(filepath.Join(append([]string{e.mounts.Directory(r.Target)}, path...)...)))
}

// end unpublishes the last volumes, of which nothing may remain.
func (e *env) end(all ...binding.Request) {
	e.Helper()
	for _, r := range all {
		e.unpublish(r)
	}
	e.wantNothing()
}

// unpublish unpublishes and expects success.
func (e *env) unpublish(r binding.Request) {
	e.Helper()
	if err := e.p.Unpublish(e.ctx, r.VolumeID, r.Target); err != nil {
		e.Fatalf("Unpublish %s: %v", r.VolumeID, err)
	}
}

// publishing starts a publish. The result arrives on the channel.
func (e *env) publishing(r binding.Request) <-chan error {
	e.pods.add(r)
	result := make(chan error, 1)
	go func() { result <- e.p.Publish(e.ctx, r) }()
	return result
}

// unpublishing is publishing for an unpublish.
func (e *env) unpublishing(r binding.Request) <-chan error {
	result := make(chan error, 1)
	go func() { result <- e.p.Unpublish(e.ctx, r.VolumeID, r.Target) }()
	return result
}

// publishMany publishes n new requests, each of a pod of its own.
func (e *env) publishMany(n int) (all []binding.Request) {
	e.Helper()
	for i := range n {
		all = append(all, e.publishNew(fmt.Sprint("v", i)))
	}
	return all
}

// waiting starts a publish that waits.
func (e *env) waiting(r binding.Request) <-chan error {
	e.Helper()
	result := e.publishing(r)
	e.wantWaiting(result)
	return result
}

// wantDone waits for the ends of calls, and expects success.
func (e *env) wantDone(results ...<-chan error) {
	e.Helper()
	for _, result := range results {
		e.must(<-result)
	}
}

// must fails the test at once with an error.
func (e *env) must(err error) {
	e.Helper()
	must.Do(e, err)
}

// wantIs compares a value. format says what it is.
func wantIs[T comparable](e *env, format string, got, want T) {
	e.Helper()
	if got != want {
		e.Errorf(format+", want %v", got, want)
	}
}

// wantReason fails the test unless err has the reason and, if text is not "", that text.
func (e *env) wantReason(err error, reason failure.Reason, text string) {
	e.Helper()
	switch {
	case err == nil:
		e.Fatalf("no error, want reason %d: %s", reason, text)
	case failure.ReasonOf(err) != reason:
		e.Errorf("reason %d, want %d: %v", failure.ReasonOf(err), reason, err)
	case text != "" && err.Error() != text:
		e.Errorf("error text\n\t%s\nwant\n\t%s", err, text)
	}
	if leaked := leak.Check("the error", err.Error()); leaked != nil {
		e.Error(leaked)
	}
}

// wantWaiting fails the test if a call has returned. All other goroutines must be blocked.
func (e *env) wantWaiting(results ...<-chan error) {
	e.Helper()
	synctest.Wait()
	for _, result := range results {
		select {
		case err := <-result:
			e.Fatalf("the call returned: %v", err)
		default:
		}
	}
}

func mapOf(pairs []string) map[string]string {
	m := map[string]string{}
	for pair := range slices.Chunk(pairs, 2) {
		m[pair[0]] = pair[1]
	}
	return m
}

// wantFiles compares what the mount at the request's target shows. pairs are paths and contents.
func (e *env) wantFiles(r binding.Request, pairs ...string) {
	e.Helper()
	want := mapOf(pairs)
	if got := e.mounts.files(r.Target); !maps.Equal(got, want) {
		e.Errorf("volume %s shows %v, want %v", r.VolumeID, got, want)
	}
}

// wantFilesOf is wantFiles for many volumes.
func (e *env) wantFilesOf(all []binding.Request, pairs ...string) {
	e.Helper()
	for _, r := range all {
		e.wantFiles(r, pairs...)
	}
}

// wantProblem fails the test unless the volume's condition has a part, or is "" for "".
func (e *env) wantProblem(r binding.Request, part string) {
	e.Helper()
	problem := "" // also for an unknown volume
	if v := e.lookup(r.VolumeID); v != nil {
		e.p.table.mu.Lock()
		if s := v.state.status; s.Condition != ConditionUnknown && s.Condition != ConditionPublishing {
			problem = s.Reason
		}
		e.p.table.mu.Unlock()
	}
	if (part == "") != (problem == "") || !strings.Contains(problem, part) {
		e.Errorf("problem %q, want %q", problem, part)
	}
	if err := leak.Check("the condition", problem); err != nil {
		e.Error(err)
	}
}

// wantNothing fails the test if anything remains of any volume: in the maps, in the counts, in the manager, mounted or open.
func (e *env) wantNothing() {
	e.Helper()
	synctest.Wait() // volumes without a waiting publish are forgotten by themselves
	e.p.table.mu.Lock()
	defer e.p.table.mu.Unlock()
	if t := e.p.table; len(t.entries)+len(t.byRef)+len(t.workers) > 0 || t.room.Total() != 0 {
		e.Errorf("left: %d volumes, %d refs, %d workers, %d bytes counted", len(t.entries), len(t.byRef), len(t.workers), t.room.Total())
	}
	registered, mounted, made := e.objects.registrations(), e.mounts.Targets(), e.mounts.Leftovers()
	if len(registered)+len(mounted)+len(made) > 0 {
		e.Errorf("left registered: %v, mounted: %v, of file systems: %v", registered, mounted, made)
	}
}

// used returns the counted memory of all volumes.
func (e *env) used() int64 { return e.p.table.room.Total() }

func (e *env) wantUsed(want int64) {
	e.Helper()
	wantIs(e, "%v bytes counted", e.used(), want)
}

// wantBetween fails the test unless a number is in a range. format says what it counts.
func (e *env) wantBetween(format string, got, least, most int) {
	e.Helper()
	if got < least || got > most {
		e.Errorf(format+", want %d to %d", got, least, most)
	}
}

// wantTook compares the bubble's time since a moment.
func (e *env) wantTook(begin time.Time, want time.Duration) {
	e.Helper()
	wantIs(e, "it took %v", time.Since(begin), want)
}

// wantLines fails the test unless the log has so many lines with all parts.
func (e *env) wantLines(want int, parts ...string) {
	e.Helper()
	if lines := e.logs.With(parts...); len(lines) != want {
		e.Errorf("%d lines with %q, want %d: %q", len(lines), parts, want, lines)
	}
}

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
