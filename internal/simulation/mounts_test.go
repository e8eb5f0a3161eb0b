package simulation

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/refvol/refvol/internal/fakenode"
	"github.com/refvol/refvol/internal/history"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// mounts are used by the processes of a run one after another. They are safe for concurrent use.
type mounts struct {
	w *world
	*fakenode.Mounts
	// disk is held during a write, and while the files of a killed process are copied.
	disk sync.Mutex
	// broken are the targets at which no handle can be opened.
	broken sync.Map
}

// newMounts returns mounts that guess their use. No volume of a run comes near the limits of the node, and to measure it would take a fifth of the
// run's time.
func newMounts(w *world) *mounts {
	return &mounts{w: w, Mounts: fakenode.New(w.T, func(f *fakenode.FileSystem) mount.Usage {
		return mount.Usage{Capacity: f.Size, Used: 64 << 10, InodesUsed: 32}
	})}
}

// lose unmounts without the plugin's knowledge.
func (m *mounts) lose(target string) (done bool) {
	m.Locked(func(attached map[string]*fakenode.FileSystem) {
		f := attached[target]
		if done = f != nil; done {
			delete(attached, target)
			must(os.RemoveAll(f.Dir))
			m.w.Add(history.Event{Kind: history.Lost, Volume: f.ID})
		}
	})
	return done
}

// crash gives each mount a copy of its files, so that what a dead process still does is not seen. It returns the old directories.
func (m *mounts) crash() (old []string) {
	m.Locked(func(attached map[string]*fakenode.FileSystem) {
		for target, f := range attached {
			next := &fakenode.FileSystem{ID: f.ID, Dir: f.Dir + "'", Size: f.Size}
			for tries := 0; ; tries++ { // generations may be pruned meanwhile
				err := exec.Command("cp", "-a", f.Dir, next.Dir).Run() // with links, modes and extended attributes
				if err == nil {
					break
				}
				must(os.RemoveAll(next.Dir))
				if tries > 100 {
					panic(err)
				}
			}
			old = append(old, f.Dir)
			attached[target] = next
		}
	})
	return old
}

// mountsOf returns the mounts as one process sees them.
func mountsOf(proc *process) publisher.Mounts {
	return fakenode.Of[publisher.Mount]{
		View: &fakenode.View{Mounts: proc.w.mounts.Mounts, Hook: proc.onMounts}, As: func(h *fakenode.Handle) publisher.Mount { return h },
	}
}

// onMounts is called before each change: the process may be dead, or be killed here, and the mount may be broken.
func (proc *process) onMounts(method, id, target string) error {
	switch m := proc.w.mounts; method {
	case "Usage", "Close":
		return nil
	case "Check":
		if proc.dead.Load() {
			return errDead
		}
		return nil
	case "Open", "Reopen", "IsMountedAt":
		if method != "IsMountedAt" {
			if err := proc.hook(strings.ToLower(method), false); err != nil {
				return err
			}
		}
		if _, isBroken := m.broken.Load(target); isBroken && m.Directory(target) != "" {
			m.w.Add(history.Event{Kind: history.Broke, Volume: id})
			return errNode
		}
		return nil
	default:
		return proc.hook(strings.ToLower(method), false)
	}
}

// hookedWriter is the real writer of one process, which may be killed between two steps. Owners stay as they are, so no root is needed.
type hookedWriter struct {
	*writer.Writer
	proc *process
	// dir is the directory of the running write, for a look in the middle.
	dir string
}

func (proc *process) newWriter(opts writer.Options) publisher.Writer {
	hooked := &hookedWriter{proc: proc}
	opts.Step = hooked.step
	hooked.Writer = writer.New(opts)
	return hooked
}

// step is called within a write.
func (h *hookedWriter) step(change string) {
	if h.proc.dead.Load() {
		return
	}
	h.proc.w.lookAt(h.dir)
	if change == "switch ..data" {
		h.proc.w.lookLater(h.dir)
	}
	_ = h.proc.hook(change, true) // a dead process goes on, but nobody sees what it does
}

func (h *hookedWriter) Write(ctx context.Context, dir *os.Root, tree *volume.Payload) (result writer.Result, err error) {
	err = h.during("a write", dir, func() error {
		result, err = h.Writer.Write(ctx, dir, fakenode.Unowned(tree))
		return err
	})
	return result, err
}

func (h *hookedWriter) Withdraw(ctx context.Context, dir *os.Root, refused map[volume.Ref]bool, record string) (result writer.Result, err error) {
	err = h.during("a withdrawal", dir, func() error {
		result, err = h.Writer.Withdraw(ctx, dir, refused, record)
		return err
	})
	return result, err
}

func (h *hookedWriter) Compare(ctx context.Context, dir *os.Root, tree *volume.Payload) (writer.Comparison, error) {
	return h.Writer.Compare(ctx, dir, fakenode.Unowned(tree))
}

// during does something with the files while nobody copies them. The process may be killed before and after it.
func (h *hookedWriter) during(what string, dir *os.Root, do func() error) error {
	h.proc.w.mounts.disk.Lock()
	defer h.proc.w.mounts.disk.Unlock()
	if err := h.proc.hook("the start of "+what, true); err != nil {
		return err
	}
	h.dir = dir.Name()
	err := do()
	if fault := h.proc.hook("the end of "+what, true); fault != nil {
		return fault
	}
	return err
}

// drainEvery is how often the queue of opens is read.
const drainEvery = 200 * time.Millisecond

// drainOpens reads the queue until a process has died.
func (w *world) drainOpens(died <-chan struct{}) {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	for {
		select {
		case <-died:
			return
		case <-tick.C:
			_ = w.opens.Drain(0)
		}
	}
}

// beforeIgnore may be a stall of the process, in which the queue is read and a container opens the file.
func (w *world) beforeIgnore(file int) {
	path, err := os.Readlink(fmt.Sprint("/proc/self/fd/", file))
	if n := w.roll("a stall before a file is ignored", 20); err == nil && (n == 0 || w.stalled.CompareAndSwap(filepath.Base(path), "")) {
		w.Met("a stall before a file is ignored")
		_ = w.opens.Drain(0)
		_ = w.opens.Drain(0)
		w.open(path)
	}
}

// open is a container that opens a file of a volume.
func (w *world) open(path string) {
	text, err := os.ReadFile(path)
	name, key, _ := strings.Cut(filepath.Base(path), "-")
	version, ok := parseVersion(string(text))
	if err != nil || !ok {
		return
	}
	for _, target := range w.mounts.Targets() {
		id, dir := w.mounts.At(target)
		if dir != "" && strings.HasPrefix(path, dir+"/") && (key == "a" || key == "b") { // the others have no content of each version
			w.Add(history.Event{Kind: history.Opened, Volume: id, Object: name, Text: key, Version: version})
		}
	}
	_ = w.opens.Open(path)
}
