package opened

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/leak/leaklog"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/internal/sandbox"
	"github.com/refvol/refvol/pkg/receipts"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

var errFault = errors.New("a fault")

const delay = 2 * time.Second

// fakeWatcher replaces the kernel, which needs root to watch files.
type fakeWatcher struct {
	opened  func([]string)
	lost    func(error)
	ignored map[string]bool
	// reads is what HasReported compares, and drains the number of calls. refusal, unread, slow and deaf make Watch, ID, Drain and
	// Listen fail.
	reads                       receipts.Position
	drains                      int
	refusal, unread, slow, deaf error
	watches, unmarks            int
	owner                       string
}

func (w *fakeWatcher) Watch(_ int, owner string, opened func([]string), lost func(error)) (stop func(), err error) {
	if w.refusal != nil {
		return nil, w.refusal
	}
	w.owner, w.opened, w.lost = owner, opened, lost
	w.watches++
	return func() { w.watches-- }, nil
}

func (w *fakeWatcher) Unmark(int) error { w.unmarks++; return nil }

func (w *fakeWatcher) ID(dir int, path string) (string, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, path, &st, unix.AT_EMPTY_PATH)
	return fmt.Sprint(st.Ino), errors.Join(err, w.unread)
}

func (w *fakeWatcher) Drain(time.Duration) error { w.drains++; return w.slow }

func (w *fakeWatcher) Ignore(file int) (receipts.Position, error) {
	id, err := w.ID(file, "")
	w.ignored[id] = true
	return w.reads + 2, err
}

func (w *fakeWatcher) HasReported(before receipts.Position) bool {
	return before != 0 && w.reads >= before
}

func (w *fakeWatcher) Listen(file int) error {
	id, err := w.ID(file, "")
	if w.deaf != nil {
		return w.deaf
	}
	delete(w.ignored, id)
	return err
}

// testVolume is a volume on tmpfs with its writer and its receipts.
type testVolume struct {
	testing.TB
	path    string
	root    *os.Root
	opts    writer.Options
	watcher *fakeWatcher
	writer  *writer.Writer
	*Receipts
	wakes  []time.Time
	logger klog.Logger
	log    leak.Log
}

// Context returns a context whose logger writes to the log.
func (v *testVolume) Context() context.Context { return klog.NewContext(v.TB.Context(), v.logger) }

// wantLogged compares the number of lines that say why there is no watch. There must be no error.
func (v *testVolume) wantLogged(count int) {
	v.Helper()
	if got := len(v.log.With("Opens of a volume's files are not watched")); got != count || len(v.log.With("Can't")) > 0 {
		v.Errorf("%d lines, want %d:\n%s", got, count, &v.log)
	}
}

// inBubble runs a test with fake time. The times of files are real.
func inBubble(t *testing.T, opts writer.Options, test func(v *testVolume)) {
	t.Helper()
	path, err := os.MkdirTemp("/dev/shm", "refvol-opened-")
	if err != nil {
		path = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(path) })
	for _, prefix := range []string{"trusted.refvol.", "user.refvol."} {
		if unix.Setxattr(path, prefix+"try", []byte("1"), 0) == nil {
			opts.AttributePrefix = prefix
		}
	}
	if opts.AttributePrefix == "" {
		t.Skip("needs root, or attributes of other users on tmpfs (Linux 6.6)")
	}
	synctest.Test(t, func(t *testing.T) {
		root := must.Get(os.OpenRoot(path))(t)
		defer root.Close()
		v := &testVolume{TB: t, path: path, root: root, opts: opts}
		v.logger = leaklog.New(t, &v.log)
		v.restart()
		v.bind()
		test(v)
	})
}

// restart replaces the receipts and the watcher, as another process does.
func (v *testVolume) restart() {
	v.watcher = &fakeWatcher{ignored: map[string]bool{}}
	v.Receipts = New(Options{
		Watcher: v.watcher, Owner: "pod", AttributePrefix: v.opts.AttributePrefix, Delay: delay, Wake: func(at time.Time) { v.wakes = append(v.wakes, at) },
	})
}

func (v *testVolume) bind() { v.writer = writer.New(v.Bind(v.opts, "versions")) }

// write makes the volume show files, given as pairs of a path and a content. The object of a file has the name of the path's first element.
func (v *testVolume) write(pairs ...string) {
	v.Helper()
	tree := &volume.Payload{DirMode: 0o755, UID: volume.NoOwner, GID: volume.NoOwner}
	for pair := range slices.Chunk(pairs, 2) {
		f := volume.File{Path: pair[0], Data: []byte(pair[1]), Mode: 0o444, Refs: []volume.Ref{ref(filepath.Dir("./" + pair[0]))}}
		if f.Path == "versions" {
			f.Refs = nil
		}
		tree.Files = append(tree.Files, f)
	}
	_, err := os.Lstat(filepath.Join(v.path, "..data"))
	v.BeforeWrite(v.Context(), v.root)
	result, writeErr := v.writer.Write(v.Context(), v.root, tree)
	if writeErr != nil {
		v.Fatal(writeErr)
	}
	v.AfterWrite(v.Context(), v.root, result.Generation, tree, err == nil)
}

func ref(name string) volume.Ref {
	return volume.Ref{Kind: volume.ConfigMap, Namespace: "ns", Name: name}
}

// id returns the ID of a file as it is shown now.
func (v *testVolume) id(path string) string {
	v.Helper()
	return must.Get((&fakeWatcher{}).ID(unix.AT_FDCWD, v.path+"/..data/"+path))(v)
}

// open has the watcher report opens of files, and saves their receipts when that is due.
func (v *testVolume) open(paths ...string) {
	v.Helper()
	for _, path := range paths {
		v.watcher.opened([]string{v.id(path)})
	}
	v.wait()
}

// wait saves what is due within the delay.
func (v *testVolume) wait() {
	<-time.After(delay)
	if at := v.DueAt(); !at.IsZero() && !time.Now().Before(at) {
		v.Save(v.Context(), v.root)
	}
}

// want compares the state of an object.
func (v *testVolume) want(name string, state State, unopened ...string) {
	v.Helper()
	o := v.States([]volume.Ref{ref(name)})[ref(name)]
	if o == nil || o.State != state || !slices.Equal(o.Unopened, unopened) || o.Count != len(unopened) || (state == Yes) == o.At.IsZero() {
		v.Errorf("%s: %+v, want %s, not opened %q", name, o, state, unopened)
	}
}

// wantIgnored compares which files the watcher ignores, among those that are shown.
func (v *testVolume) wantIgnored(paths ...string) {
	v.Helper()
	want := map[string]bool{}
	for _, path := range paths {
		want[v.id(path)] = true
	}
	if !maps.Equal(v.watcher.ignored, want) {
		v.Errorf("ignored are %v, want %v: %q", v.watcher.ignored, want, paths)
	}
}

// wantDue compares when Save is due, from now on.
func (v *testVolume) wantDue(in time.Duration) {
	v.Helper()
	if at := v.DueAt(); time.Until(at) != in {
		v.Errorf("due in %s, want %s", time.Until(at), in)
	}
}

func (v *testVolume) wantNothingDue() {
	v.Helper()
	if at := v.DueAt(); !at.IsZero() {
		v.Errorf("due in %s", time.Until(at))
	}
}
