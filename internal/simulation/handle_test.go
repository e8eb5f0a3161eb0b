package simulation

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/refvol/refvol/internal/history"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// handle is a process's handle on one file system. It implements publisher.Mount.
type handle struct {
	view *view
	fsys *fileSystem
	root *os.Root
	// isOwn means that the file system was never attached: closing the handle removes it.
	isOwn bool
}

func (v *view) Create(ctx context.Context, params mount.Params) (publisher.Mount, error) {
	if err := errors.Join(v.begin("create"), ctx.Err()); err != nil {
		return nil, err
	}
	f, err := v.create(params)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(f.dir)
	return &handle{v, f, root, true}, err
}

func (v *view) Reopen(_ context.Context, id, target string) (publisher.Mount, error) {
	if err := v.begin("reopen"); err != nil {
		return nil, err
	}
	f, root, err := v.open(id, target)
	if err != nil {
		return nil, fmt.Errorf("reopen: %w", err)
	}
	return &handle{v, f, root, false}, nil
}

func (h *handle) Root() *os.Root { return h.root }

func (h *handle) Attach(_ context.Context, target string) error {
	if err := h.view.begin("attach"); err != nil {
		return err
	}
	if err := h.view.attach(h.fsys, target); err != nil {
		return err
	}
	h.isOwn = false
	return h.view.begin("attached")
}

func (h *handle) IsMountedAt(target string) bool {
	h.view.mu.Lock()
	defer h.view.mu.Unlock()
	if h.view.broken[target] {
		h.view.w.Add(history.Event{Kind: history.Broke, Volume: h.fsys.id})
		return false
	}
	return h.view.attached[target] == h.fsys
}

func (h *handle) Usage() (mount.Usage, error) { return usageOf(h.fsys), nil }

func (h *handle) Close() error {
	if h.isOwn {
		must(os.RemoveAll(h.fsys.dir))
	}
	return h.root.Close()
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

func unowned(tree *volume.Payload) *volume.Payload {
	t := *tree
	t.UID, t.GID = volume.NoOwner, volume.NoOwner
	return &t
}

func (h *hookedWriter) Write(ctx context.Context, dir *os.Root, tree *volume.Payload) (result writer.Result, err error) {
	err = h.during("a write", dir, func() error {
		result, err = h.Writer.Write(ctx, dir, unowned(tree))
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
	return h.Writer.Compare(ctx, dir, unowned(tree))
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
