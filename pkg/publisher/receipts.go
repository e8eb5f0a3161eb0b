package publisher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/receipts"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

const (
	// maxWatchedFiles limits the memory for the receipts of a volume. No other limit counts that memory.
	maxWatchedFiles = 512
	// A watch that could not be started is retried after rewatchMin, and later after up to rewatchMax. A watch that ended because of noise
	// is started again by the next write after such a delay.
	rewatchMin = 10 * time.Second
	rewatchMax = time.Hour
	// drainTime is how long a rewrite in place waits for earlier opens to be reported. After it, receipts are unknown, but the files are
	// not late.
	drainTime = 100 * time.Millisecond
)

// errTooManyFiles says why a volume has no receipts.
var errTooManyFiles = fmt.Errorf("a volume of more than %d files has no receipts", maxWatchedFiles)

// openReceipts records which files of a volume have been opened. The worker owns it; Opens reports to the inbox. A failure here makes
// receipts unknown and never affects the files.
type openReceipts struct {
	opens  Opens  // nil: there are no receipts
	owner  string // the pod's UID: opens that come too fast are counted per pod
	writes writer.Options
	inbox  *inbox
	// versionsPath is the path of the versions file, which belongs to no object. "" means none.
	versionsPath string

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

// newReceipts returns the receipts of a volume. owner is the UID of its pod. prefix is the prefix of its attributes' names. wake schedules a
// reconcile of the volume.
func newReceipts(opens Opens, owner, prefix string, wake func(at time.Time)) *openReceipts {
	return &openReceipts{opens: opens, owner: owner, inbox: &inbox{wake: wake}, writes: writer.Options{AttributePrefix: prefix}}
}

// bind sets how the volume is written. It returns these options with the callbacks that receipts need.
func (r *openReceipts) bind(writes writer.Options, versionsPath string) writer.Options {
	if r.opens != nil {
		writes.Rewritten, writes.Removing = r.rewritten, r.removing
	}
	r.writes, r.versionsPath = writes, versionsPath
	delete(r.files, versionsPath)
	return writes
}

// find schedules a read of a mounted volume's receipts. Nobody saw which files were opened while no plugin was running.
func (r *openReceipts) find(at time.Time) {
	if r.opens != nil {
		r.findAt = at
	}
}

// dueAt returns when save is due, or zero for never.
func (r *openReceipts) dueAt() time.Time {
	if r.opens == nil {
		return time.Time{}
	}
	return earlier(earlier(r.findAt, r.retryAt), r.inbox.dueAt())
}

// close ends the watch of a volume that is unmounted or replaced. Nothing is due afterwards.
func (r *openReceipts) close() {
	if r.stop != nil {
		r.stop()
	}
	r.inbox.take()
	*r = openReceipts{opens: r.opens, owner: r.owner, inbox: r.inbox, writes: r.writes, versionsPath: r.versionsPath}
}

// beforeWrite reads the files of a mounted volume before the first write after a restart changes them.
func (r *openReceipts) beforeWrite(ctx context.Context, root *os.Root) {
	if !r.findAt.IsZero() {
		r.look(ctx, root, true)
	}
}

// afterWrite records the files that are shown after a write that changed some: the files of tree in a generation or, if tree is nil,
// whatever exists. visible means that somebody may have opened them already.
func (r *openReceipts) afterWrite(ctx context.Context, root *os.Root, generation string, tree *volume.Payload, visible bool) {
	isKnown := r.unread == nil && (r.stop != nil || !visible) // all earlier files are known, and so is each open since then
	switch {
	case r.opens == nil:
	case tree != nil && len(tree.Files) > maxWatchedFiles && r.stop == nil:
		r.refuse(ctx, errTooManyFiles)
		r.files = nil
	case isKnown && tree != nil && len(tree.Files) <= maxWatchedFiles && !r.writes.InPlace && r.note(ctx, root, generation, tree) == nil:
	default:
		r.look(ctx, root, !isKnown)
	}
}

// note records the files of a tree that was just written, without opening them. A file with another ID than before is new.
func (r *openReceipts) note(ctx context.Context, root *os.Root, generation string, tree *volume.Payload) error {
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
			if err := g.WithFile(path, r.opens.Ignore); err != nil {
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

// save writes the receipts of files that were opened, and does the other work that is due.
func (r *openReceipts) save(ctx context.Context, root *os.Root) {
	if r.opens == nil || r.dueAt().IsZero() {
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
func (r *openReceipts) miss() {
	for _, file := range r.files {
		file.missed = file.missed || file.Opened.IsZero()
	}
}

// setReceipts writes receipts to files. Opens does not report these files afterwards.
func (r *openReceipts) setReceipts(root *os.Root, files []*shownFile) error {
	if len(files) == 0 {
		return nil
	}
	g, err := writer.OpenGeneration(root, r.writes, r.generation)
	if err != nil {
		return err
	}
	defer g.Close()
	for _, file := range files {
		if failed := g.SetReceipt(file.Path, file.Opened, r.opens.Ignore); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		file.reported = r.opens.Reads() + 2
	}
	return err
}

// look reads which files are shown and watches their opens. A known file keeps its state. missed means that the other files may have been
// opened before.
func (r *openReceipts) look(ctx context.Context, root *os.Root, missed bool) {
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
func (r *openReceipts) read(g *writer.Generation, missed bool) error {
	files := map[string]*shownFile{}
	err := g.Receipts(func(receipt writer.Receipt, file int) error {
		if len(files) == maxWatchedFiles {
			return errTooManyFiles
		}
		if receipt.Path == r.versionsPath || len(receipt.Refs) == 0 && !receipt.Any {
			return r.opens.Ignore(file)
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
		err = r.opens.Ignore(file)
		known.reported = r.opens.Reads() + 2 // after Ignore: an open from before it may have been reported by a read meanwhile
		return err
	})
	r.generation, r.files = g.Name, files
	return err
}

// removing makes Opens ignore a file that can no longer get a receipt; see writer.Options.Removing. Otherwise a process that has the file
// open could cause noise without end.
func (r *openReceipts) removing(file int) {
	if r.stop != nil {
		_ = r.opens.Ignore(file) // if this fails, noise ends the watch
	}
}

// watch starts to watch the file system of a generation, unless it is watched already or must not be yet. The files are known.
func (r *openReceipts) watch(ctx context.Context, g *writer.Generation) {
	if r.stop != nil || errors.Is(r.unwatched, receipts.ErrNoisy) && time.Now().Before(r.noUntil) {
		return
	}
	stop, err := r.opens.Watch(g.Fd(), r.owner, r.inbox.opened, r.inbox.lost)
	if err != nil {
		r.refuse(ctx, err)
		r.retry()
		return
	}
	r.stop, r.unwatched = stop, nil
}

// refuse notes why there is no watch. Each reason is logged once.
func (r *openReceipts) refuse(ctx context.Context, err error) {
	if r.unwatched == nil || r.unwatched.Error() != err.Error() {
		klog.FromContext(ctx).Info("Opens of a volume's files are not watched", "reason", err.Error())
	}
	r.unwatched = err
	r.miss()
}

// retry schedules a retry, with delays that grow until receipts have worked for a long time.
func (r *openReceipts) retry() {
	now := time.Now()
	if now.Sub(r.endedAt) > 2*rewatchMax {
		r.ended = 0
	}
	r.retryAt = now.Add(min(rewatchMin<<min(r.ended, 10), rewatchMax))
	r.ended, r.endedAt = r.ended+1, now
}

// endWatch handles the end of a watch that Opens reported. After an end because of noise, no watch is started for a while.
func (r *openReceipts) endWatch(ctx context.Context, root *os.Root, why error) {
	r.refuse(ctx, why)
	r.retry()
	if !errors.Is(why, receipts.ErrNoisy) {
		r.stop = nil
		return
	}
	r.noUntil, r.retryAt = r.retryAt, time.Time{}
	g, err := writer.OpenGeneration(root, r.writes, "")
	if err != nil {
		r.stop = nil
		klog.FromContext(ctx).Error(err, "Can't end the watch of a volume's files")
		return
	}
	defer g.Close()
	r.unmark(ctx, g)
}

// unmark ends the watch of a generation's file system, if there is one.
func (r *openReceipts) unmark(ctx context.Context, g *writer.Generation) {
	if r.stop == nil {
		return
	}
	r.stop()
	r.stop = nil
	if err := r.opens.Unmark(g.Fd()); err != nil {
		klog.FromContext(ctx).Error(err, "Can't end the watch of a volume's files")
	}
}

// rewritten notes that a file has new content, and forgets opens from before the last byte; see writer.Options.Rewritten. If the file was
// ignored for long enough, no such open is queued, and there is nothing to wait for.
func (r *openReceipts) rewritten(path string, file int) {
	id, err := r.opens.ID(file, "")
	if known := r.files[path]; known == nil || known.reported == 0 || r.opens.Reads() < known.reported {
		err = errors.Join(err, r.opens.Drain(drainTime))
	}
	err = errors.Join(err, r.opens.Listen(file))
	r.inbox.forget(id, err)
	delete(r.files, path) // it is read again after the write
}

// states returns for each object whether it was opened: it has at least one file, and each of its files has a receipt.
func (r *openReceipts) states(refs []volume.Ref) map[volume.Ref]*Opened {
	if r.opens == nil {
		return nil
	}
	all := make(map[volume.Ref]*Opened, len(refs))
	for _, ref := range refs {
		all[ref] = &Opened{}
	}
	for _, path := range sortedKeys(r.files) {
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
