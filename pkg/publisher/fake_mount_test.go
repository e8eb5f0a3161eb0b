package publisher

import (
	"context"
	"maps"
	"os"
	"slices"

	"github.com/refvol/refvol/pkg/mount"
)

// fakeMount is a handle on a file system.
type fakeMount struct {
	mounts   *fakeMounts
	fsys     *fakeTmpfs
	root     *os.Root
	reopened bool
}

func (h *fakeMount) Root() *os.Root { return h.root }

func (h *fakeMount) Attach(ctx context.Context, target string) error {
	if err := h.mounts.begin("Attach"); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := h.attach(target); err != nil {
		return err
	}
	return h.mounts.begin("Attached")
}

func (h *fakeMount) attach(target string) error {
	h.mounts.mu.Lock()
	defer h.mounts.mu.Unlock()
	if h.mounts.attached[target] != nil {
		return mount.ErrForeign
	}
	h.mounts.attached[target] = h.fsys
	return nil
}

func (h *fakeMount) IsMountedAt(target string) bool {
	if h.mounts.begin("IsMountedAt") != nil {
		return false
	}
	h.mounts.mu.Lock()
	defer h.mounts.mu.Unlock()
	return h.mounts.attached[target] == h.fsys
}

// Close closes the handle, and with it a file system that was never attached.
func (h *fakeMount) Close() error {
	fault := h.mounts.begin("Close")
	h.mounts.mu.Lock()
	defer h.mounts.mu.Unlock()
	h.fsys.open--
	if !h.reopened && !slices.Contains(slices.Collect(maps.Values(h.mounts.attached)), h.fsys) {
		if err := os.RemoveAll(h.fsys.dir); err != nil {
			h.mounts.t.Error(err)
		}
	}
	if err := h.root.Close(); err != nil {
		return err
	}
	return fault
}

func (h *fakeMount) Usage() (mount.Usage, error) {
	if err := h.mounts.begin("Usage"); err != nil {
		return mount.Usage{}, err
	}
	h.mounts.mu.Lock()
	defer h.mounts.mu.Unlock()
	return h.mounts.usageLocked(h.fsys), nil
}
