package opened

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// DrainTime is how long Watcher.Drain may take where something waits for it. After it, receipts are unknown, but nothing is late.
const DrainTime = 100 * time.Millisecond

const (
	// maxFiles limits the memory for the receipts of a volume. No other limit counts that memory.
	maxFiles = 512
	// A watch that could not be started is retried after rewatchMin, and later after up to rewatchMax. A watch that ended because of noise
	// is started again by the next write after such a delay.
	rewatchMin = 10 * time.Second
	rewatchMax = time.Hour
)

// errTooManyFiles says why a volume has no receipts.
var errTooManyFiles = fmt.Errorf("a volume of more than %d files has no receipts", maxFiles)

// Options are what Receipts need. All but Watcher are required.
type Options struct {
	// Watcher reports opens. If it is nil, there are no receipts: no method does anything.
	Watcher Watcher
	// Owner is any string: opens that come too fast are counted for all volumes with the same owner together.
	Owner string
	// AttributePrefix is the prefix of the names of the files' attributes. See writer.Options.
	AttributePrefix string
	// Delay is how long an open waits at most before Save is due. Its receipt is lost if the process is killed meanwhile.
	Delay time.Duration
	// Wake is called with the time at which Save is due, each time that opens are reported. It must return at once and must be safe for
	// concurrent use.
	Wake func(at time.Time)
}

// Receipts records which files of a volume have been opened. One goroutine at a time uses it, but any goroutine may call Lost. A failure here
// makes receipts unknown and never affects the files, so no method returns an error: it is logged with the logger of the context.
type Receipts struct {
	// opens, owner and inbox are constant. opens is nil if there are no receipts. It reports to the inbox.
	opens Watcher
	owner string
	inbox *inbox
	// versionsPath is the path of the versions file, which belongs to no object. "" means none.
	versionsPath string
	writes       writer.Options

	mounted
}

// mounted is what is known of a mounted volume.
type mounted struct {
	// files are the shown files by path, and generation is where they are. unread says why the files are not known.
	files      map[string]*shownFile
	generation string
	unread     error
	// findAt is when the files of a mounted volume are first read after a restart. It is zero afterwards.
	findAt time.Time
	// stop ends the watch; it is nil without one. unwatched says why there is no watch. retryAt is when starting it is retried.
	stop      func()
	unwatched error
	retryAt   time.Time
	// ended counts the watches that could not be started or that ended because of noise, the last one at endedAt. Until noUntil, no write
	// starts another one.
	ended            int
	endedAt, noUntil time.Time
}

// New returns the receipts of a volume of which nothing is known yet.
func New(o Options) *Receipts {
	return &Receipts{
		opens: o.Watcher, owner: o.Owner, inbox: &inbox{delay: o.Delay, wake: o.Wake}, writes: writer.Options{AttributePrefix: o.AttributePrefix},
	}
}

// Bind sets how the volume is written, and the path of its versions file, which needs no receipt; "" means none. It returns these options
// with the callbacks that receipts need. The writer calls them in the goroutine that uses the Receipts.
func (r *Receipts) Bind(writes writer.Options, versionsPath string) writer.Options {
	if r.opens != nil {
		writes.Rewritten, writes.Removing = r.rewritten, r.Removing
	}
	r.writes, r.versionsPath = writes, versionsPath
	delete(r.files, versionsPath)
	return writes
}

// Find has Save read a mounted volume's receipts at a time. Nobody saw which files were opened while no plugin was running.
func (r *Receipts) Find(at time.Time) {
	if r.opens != nil {
		r.findAt = at
	}
}

// DueAt returns when Save is due, or zero for never.
func (r *Receipts) DueAt() time.Time {
	if r.opens == nil {
		return time.Time{}
	}
	return earlier(earlier(r.findAt, r.retryAt), r.inbox.dueAt())
}

// Lost notes that opens may have been missed, so that Save is due at once. It does not block, and is safe for concurrent use.
func (r *Receipts) Lost() {
	if r.opens != nil {
		r.inbox.lost(nil)
	}
}

// Close ends the watch of a volume that is unmounted or replaced, and forgets its files. Nothing is due afterwards. It is idempotent.
func (r *Receipts) Close() {
	if r.stop != nil {
		r.stop()
	}
	r.inbox.take()
	r.mounted = mounted{} // Lost may be running, and reads the other fields
}

// BeforeWrite reads the files of a mounted volume before the first write after a restart changes them. root is the volume.
func (r *Receipts) BeforeWrite(ctx context.Context, root *os.Root) {
	if !r.findAt.IsZero() {
		r.look(ctx, root, true)
	}
}

// AfterWrite records the files that the volume root shows after a write that changed some: the files of tree in a generation or, if tree is
// nil, whatever exists. visible means that somebody may have opened them already.
func (r *Receipts) AfterWrite(ctx context.Context, root *os.Root, generation string, tree *volume.Payload, visible bool) {
	isKnown := r.unread == nil && (r.stop != nil || !visible) // all earlier files are known, and so is each open since then
	switch {
	case r.opens == nil:
	case tree != nil && len(tree.Files) > maxFiles && r.stop == nil:
		r.refuse(ctx, errTooManyFiles)
		r.files = nil
	case isKnown && tree != nil && len(tree.Files) <= maxFiles && !r.writes.InPlace && r.note(ctx, root, generation, tree) == nil:
	default:
		r.look(ctx, root, !isKnown)
	}
}

// note records the files of a tree that was just written, without opening them. A file with another ID than before is new.
func (r *Receipts) note(ctx context.Context, root *os.Root, generation string, tree *volume.Payload) error {
	g, err := writer.OpenGeneration(root, r.writes, generation)
	if err != nil {
		return err
	}
	defer g.Close()
	r.findAt, r.retryAt = time.Time{}, time.Time{}
	r.watch(ctx, g)
	files, now := make(map[string]*shownFile, len(tree.Files)), time.Now()
	for i := range tree.Files {
		path := tree.Files[i].Path
		if path == r.versionsPath {
			if err := g.WithFile(path, r.ignore); err != nil {
				return err
			}
			continue
		}
		id, err := r.opens.ID(g.Fd(), path)
		if err != nil {
			return err
		}
		known := r.files[path]
		if known == nil || known.id != id {
			known = &shownFile{Receipt: writer.Receipt{Path: path, Written: now}, id: id, missed: r.stop == nil}
		}
		known.Refs, known.Any = tree.Files[i].Refs, false
		files[path] = known
	}
	r.generation, r.files = generation, files
	return nil
}

// Save writes the receipts of files of the volume root that were opened, and does the other work that is due.
func (r *Receipts) Save(ctx context.Context, root *os.Root) {
	if r.opens == nil || r.DueAt().IsZero() {
		return
	}
	now, news := time.Now(), r.inbox.take()
	if news.ended != nil {
		r.endWatch(ctx, root, news.ended)
	}
	var opened []*shownFile
	for _, file := range r.files {
		if at, ok := news.opened[file.id]; ok && file.Opened.IsZero() {
			file.Opened = at
			opened = append(opened, file)
		}
	}
	if news.lost {
		r.miss()
	}
	if err := r.setReceipts(root, opened); err != nil { // the receipts stay known while this process runs
		klog.FromContext(ctx).Error(err, "Can't keep receipts")
	}
	if isDue(r.findAt, now) || isDue(r.retryAt, now) {
		r.look(ctx, root, true)
	}
}

// miss notes that every file without a receipt may have been opened.
func (r *Receipts) miss() {
	for _, file := range r.files {
		file.missed = file.missed || file.Opened.IsZero()
	}
}

// setReceipts writes receipts to files. The Watcher does not report these files afterwards.
func (r *Receipts) setReceipts(root *os.Root, files []*shownFile) error {
	if len(files) == 0 {
		return nil
	}
	g, err := writer.OpenGeneration(root, r.writes, r.generation)
	if err != nil {
		return err
	}
	defer g.Close()
	for _, file := range files {
		failed := g.SetReceipt(file.Path, file.Opened, func(fd int) (err error) {
			file.ignored, err = r.opens.Ignore(fd)
			return err
		})
		err = errors.Join(err, failed)
	}
	return err
}

// look reads which files are shown and watches their opens. A known file keeps its state. missed means that the other files may have been
// opened before.
func (r *Receipts) look(ctx context.Context, root *os.Root, missed bool) {
	r.findAt, r.retryAt, r.unread = time.Time{}, time.Time{}, nil
	g, err := writer.OpenGeneration(root, r.writes, "")
	if err == nil {
		defer g.Close()
		r.watch(ctx, g)
		err = r.read(g, missed || r.stop == nil)
	}
	switch {
	case err == nil:
	case errors.Is(err, errTooManyFiles):
		r.files = nil
		r.refuse(ctx, err)
		r.unmark(ctx, g)
	case errors.Is(err, fs.ErrNotExist): // somebody has removed it; the next write creates another one
		r.files, r.unread = nil, err
	default:
		r.files, r.unread = nil, err
		r.retry()
		klog.FromContext(ctx).Error(err, "Can't look at the receipts of a volume")
	}
}

// read reads the files of a generation. Files of no object need no receipt: the versions file, and emptied files.
func (r *Receipts) read(g *writer.Generation, missed bool) error {
	files := map[string]*shownFile{}
	err := g.Receipts(func(receipt writer.Receipt, file int) error {
		if len(files) == maxFiles {
			return errTooManyFiles
		}
		if receipt.Path == r.versionsPath || len(receipt.Refs) == 0 && !receipt.Any {
			return r.ignore(file)
		}
		id, err := r.opens.ID(file, "")
		if err != nil {
			return err
		}
		known := r.files[receipt.Path]
		if known == nil || known.id != id || r.writes.InPlace && !known.Written.Equal(receipt.Written) {
			known = &shownFile{id: id, missed: missed}
		}
		if receipt.Opened.IsZero() {
			receipt.Opened = known.Opened
		}
		known.Receipt = receipt
		files[receipt.Path] = known
		if receipt.Opened.IsZero() {
			return nil
		}
		known.ignored, err = r.opens.Ignore(file)
		return err
	})
	r.generation, r.files = g.Name, files
	return err
}

// Removing has the Watcher ignore a file that can no longer get a receipt; see writer.Options.Removing. file is its descriptor, opened
// without O_PATH. Otherwise a process that has the file open could cause noise without end. It does nothing while there is no watch.
func (r *Receipts) Removing(file int) {
	if r.stop != nil {
		_ = r.ignore(file) // if this fails, noise ends the watch
	}
}

// ignore ends the reports of a file that never gets a receipt.
func (r *Receipts) ignore(file int) error {
	_, err := r.opens.Ignore(file)
	return err
}

// rewritten notes that a file has new content, and forgets opens from before the last byte; see writer.Options.Rewritten. If the file was
// ignored for long enough, no such open is queued, and there is nothing to wait for.
func (r *Receipts) rewritten(path string, file int) {
	id, err := r.opens.ID(file, "")
	if known := r.files[path]; known == nil || !r.opens.HasReported(known.ignored) {
		err = errors.Join(err, r.opens.Drain(DrainTime))
	}
	err = errors.Join(err, r.opens.Listen(file))
	r.inbox.forget(id, err)
	delete(r.files, path) // it is read again after the write
}

// States returns for each of these objects whether it was opened: it has at least one file, and each of its files has a receipt. It returns
// nil if there are no receipts. The caller owns the result.
func (r *Receipts) States(refs []volume.Ref) map[volume.Ref]*Object {
	if r.opens == nil {
		return nil
	}
	all := make(map[volume.Ref]*Object, len(refs))
	for _, ref := range refs {
		all[ref] = &Object{}
	}
	for _, path := range slices.Sorted(maps.Keys(r.files)) {
		file := r.files[path]
		of := file.Refs
		if file.Any {
			of = refs
		}
		for _, ref := range of {
			if o := all[ref]; o != nil {
				o.add(file)
			}
		}
	}
	for _, o := range all {
		o.conclude(r.unwatched, r.unread)
	}
	return all
}
