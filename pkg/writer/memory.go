package writer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// errNoAttribute is why a tree is refused that a Withdraw could do nothing with, or a record.
var errNoAttribute = errors.New("the writer has no attribute for what files name and for the record")

// memory is what a writer of either kind keeps from one Write to the next.
type memory struct {
	now   func() time.Time
	fs    fileSystem
	names attributeNames
	// shown is what the directory is known to show. It is nil whenever that is
	// in doubt: in a new writer, during a write, and after one that failed.
	shown *snapshot
	// stale says that an earlier generation is, or may be, still there.
	stale bool
	// kept is the earlier generations that stay for those who have begun to read them, oldest first.
	kept []superseded
	// found is since when the generations that another process left count as superseded; zero once
	// they are among kept.
	found time.Time
}

// superseded is a generation that ..data pointed at until a moment.
type superseded struct {
	name  string
	until time.Time
}

func newMemory(opts Options) memory {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	return memory{now: opts.Now, fs: linux{}, names: namesWith(opts.AttributePrefix)}
}

// update returns an update of the directory root, whose calls end at the deadline of ctx, if it has one.
func (m *memory) update(ctx context.Context, root *os.File) *update {
	return &update{fs: inTime(ctx, m.fs), root: int(root.Fd()), now: m.now, names: m.names, kept: m.kept, found: m.found}
}

// write returns at once when dir is known to show tree. Else it calls run
// with an update to be carried out, and with what was known of the directory, which may be
// nil.
func (m *memory) write(ctx context.Context, dir *os.Root, tree *volume.Tree, run func(u *update, known *snapshot) error) (Result, error) {
	if err := checkTree(tree); err != nil {
		return Result{}, err
	}
	namesRefs := slices.ContainsFunc(tree.Files, func(f volume.File) bool { return len(f.Refs) > 0 })
	if m.names.refs == "" && (namesRefs || tree.Record != "") {
		return Result{}, errNoAttribute
	}
	next := describe(tree)
	if m.shown != nil && next.sameAs(m.shown) && next.record == m.shown.record {
		next.generation, next.links, next.emptied = m.shown.generation, m.shown.links, m.shown.emptied
		m.shown = next
		return Result{Generation: next.generation}, nil
	}

	root, err := openRoot(dir)
	if err != nil {
		return Result{}, err
	}
	defer root.Close()
	known := m.shown
	m.shown = nil
	u := m.update(ctx, root)
	u.tree, u.next = tree, next
	err = run(u, known)
	m.kept, m.found = u.kept, u.found
	if err != nil {
		m.stale = m.stale || u.leavesStale() || errors.Is(err, context.DeadlineExceeded)
		return u.result, errors.Join(err, u.leftover) // it may be what lacks the room
	}
	m.stale = u.leavesStale()
	m.shown = next
	return u.result, nil
}

// Stale reports whether an earlier generation is still there: for readers that have
// begun to read it, or because it could not be removed. A new Writer takes it that one may be.
func (m *memory) Stale() bool { return m.stale }

// StaleSince returns, while Stale, when the oldest of the earlier generations was superseded, or when
// this writer was made if another process left it. It is the zero time for what should have gone already.
func (m *memory) StaleSince() time.Time {
	if len(m.kept) > 0 {
		return m.kept[0].until
	}
	return m.found
}

// Prune removes from dir every earlier generation that was superseded at before or earlier. What
// fails to be removed is tried again by the next Prune or Write. ctx is heeded if it has a deadline.
func (m *memory) Prune(ctx context.Context, dir *os.Root, before time.Time) error {
	root, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	u := m.update(ctx, root)
	err = u.prune(before)
	m.kept, m.found = u.kept, u.found
	m.stale = len(m.kept) > 0 || err != nil
	return err
}

// openRoot opens dir itself. A descriptor that never waits is taken by package os as it
// is; of another it takes six system calls to find out that a directory can't be polled.
func openRoot(dir *os.Root) (*os.File, error) {
	root, err := dir.OpenFile(".", unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open the volume's root: %w", err)
	}
	return root, nil
}
