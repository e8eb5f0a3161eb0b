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

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/leak/leaklog"
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
	// bubble means that time is fake.
	bubble bool
	// stop ends Run; nil while it is not running.
	stop func()
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
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, change)
		e.bubble = true
		test(e)
	})
}

// newEnv returns a Publisher that is not running yet. change may change its options.
func newEnv(t *testing.T, change func(*Options)) *env {
	t.Helper()
	logs := &leak.Log{}
	logger := leaklog.New(t, logs) // the log is searched when everything below has ended
	e := &env{
		T:       t,
		ctx:     klog.NewContext(context.WithoutCancel(t.Context()), logger), // the clean-up needs it too
		objects: newFakeObjects(),
		mounts:  newFakeMounts(t),
		writes:  &faultyWrites{},
		events:  &fakeEvents{},
		pods:    &fakePods{},
		logs:    logs,
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
		e.searchAll()
		e.mounts.check()
		e.wantNoPanic()
	})
	return e
}

// searchAll fails the test if an event has a value. The logs are searched at the end of the test.
func (e *env) searchAll() {
	e.Helper()
	if err := e.events.leaks(); err != nil {
		e.Error(err)
	}
}

// wantNoPanic fails the test if the Publisher has recovered from a panic. Those that tests make have a string.
func (e *env) wantNoPanic() {
	e.Helper()
	for _, line := range e.logs.With("Something panicked") {
		if !strings.Contains(line, `panicType="string"`) {
			e.Errorf("the log has %s", line)
		}
	}
}

// start creates the Publisher, as a process does at its start.
func (e *env) start() {
	e.Helper()
	p, err := New(e.opts)
	if err != nil {
		e.Fatal(err)
	}
	e.p = p
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
	e.objects.forgetPods()
	e.start()
	if err := e.p.Restore(e.ctx); err != nil {
		e.Fatal(err)
	}
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
	if err := os.MkdirAll(filepath.Dir(r.Target), 0o755); err != nil {
		e.Fatal(err)
	}
}

// encoded returns the text of the volume's record.
func (e *env) encoded(r binding.Request) string {
	e.Helper()
	return record.Record{Shown: e.recorded(r)}.Encode()
}

// publish publishes one after another, and expects success.
func (e *env) publish(all ...binding.Request) {
	e.Helper()
	for _, r := range all {
		e.pods.add(r)
		if err := e.p.Publish(e.ctx, r); err != nil {
			e.Fatalf("Publish %s: %v", r.VolumeID, err)
		}
		if e.bubble {
			synctest.Wait() // its reconcile ends a moment later
		}
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
	if err := os.Remove(filepath.Join(append([]string{e.mounts.directory(r.Target)}, path...)...)); err != nil {
		e.Fatal(err)
	}
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
		if err := <-result; err != nil {
			e.Fatal(err)
		}
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
func (e *env) wantWaiting(result <-chan error) {
	e.Helper()
	synctest.Wait()
	select {
	case err := <-result:
		e.Fatalf("the call returned: %v", err)
	default:
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

// wantProblem compares the volume's condition: it contains one of the parts, or is "".
func (e *env) wantProblem(r binding.Request, parts ...string) {
	e.Helper()
	problem := "" // also for an unknown volume
	if v := e.lookup(r.VolumeID); v != nil {
		e.p.table.mu.Lock()
		if s := v.state.status; s.Condition != ConditionUnknown && s.Condition != ConditionPublishing {
			problem = s.Reason
		}
		e.p.table.mu.Unlock()
	}
	if !slices.ContainsFunc(parts, func(part string) bool {
		return (part == "") == (problem == "") && strings.Contains(problem, part)
	}) {
		e.Errorf("problem %q, want one of %q", problem, parts)
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
	if t := e.p.table; len(t.entries)+len(t.byRef) > 0 || e.p.table.room.Total() != 0 {
		e.Errorf("left: %d volumes, %d refs, %d bytes counted", len(t.entries), len(t.byRef), e.p.table.room.Total())
	}
	if left := len(e.p.table.workers); left > 0 {
		e.Errorf("left: %d workers", left)
	}
	e.p.table.mu.Unlock()
	if left := e.objects.registrations(); len(left) > 0 {
		e.Errorf("left registered: %v", left)
	}
	if left := e.mounts.targets(); len(left) > 0 {
		e.Errorf("left mounted: %v", left)
	}
	if left := e.mounts.leftovers(); len(left) > 0 {
		e.Errorf("left of file systems: %v", left)
	}
}

// used returns the counted memory of all volumes.
func (e *env) used() int64 { return e.p.table.room.Total() }

func (e *env) wantUsed(want int64) {
	e.Helper()
	if got := e.used(); got != want {
		e.Errorf("%d bytes counted, want %d", got, want)
	}
}

// wantBetween fails the test unless a number is in a range. format says what it counts.
func (e *env) wantBetween(format string, got, least, most int) {
	e.Helper()
	if got < least || got > most {
		e.Errorf(format+", want %d to %d", got, least, most)
	}
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

// recorded returns the versions in the volume's record.
func (e *env) recorded(r binding.Request) record.Versions {
	e.Helper()
	return e.recordedIn(e.mounts.directory(r.Target), r)
}

// recordOf returns the volume's whole record.
func (e *env) recordOf(r binding.Request) record.Record {
	e.Helper()
	return e.recordIn(e.mounts.directory(r.Target), r)
}

func (e *env) recordedIn(dir string, r binding.Request) record.Versions {
	e.Helper()
	return e.recordIn(dir, r).Shown
}

func (e *env) recordIn(dir string, r binding.Request) record.Record {
	e.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		e.Fatal(err)
	}
	defer root.Close()
	text, err := writer.Record(root, e.opts.AttributePrefix)
	if err != nil {
		e.Fatal(err)
	}
	return record.Decode(text, e.lookup(r.VolumeID).vol.binding.Spec().Refs)
}

// restartUnread is like restart, but the API server has no pods, so that only a publish shows what was requested.
func (e *env) restartUnread() {
	e.Helper()
	e.pods.removeAll()
	e.resume()
}
