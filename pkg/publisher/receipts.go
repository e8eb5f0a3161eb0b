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
	// maxWatchedFiles bounds the memory that the receipts of a volume take, which nothing counts.
	maxWatchedFiles = 512
	// A watch that was refused is tried again after rewatchMin, later after up to rewatchMax. One that was ended for its noise
	// comes back with the next write after such a time.
	rewatchMin = 10 * time.Second
	rewatchMax = time.Hour
	// drainTime is how long a rewrite in place waits for the opens of before. Then receipts are unknown: files are not late.
	drainTime = 100 * time.Millisecond
)

// errTooManyFiles is why a volume has no receipts.
var errTooManyFiles = fmt.Errorf("a volume of more than %d files has no receipts", maxWatchedFiles)

// openReceipts are who has opened the files of one volume. The worker owns them; Opens reports to the inbox. Whatever fails
// here makes receipts unknown and keeps nothing from the files.
type openReceipts struct {
	opens  Opens // nil: there are no receipts
	writes writer.Options
	inbox  *inbox
	// versionsPath is that of the file of versions, which is of no object; "" for none.
	versionsPath string

	// files are those that are shown, by path, in the generation. unread is why they are not known.
	files      map[string]*shownFile
	generation string
	unread     error
	// findAt is when those of a volume that was found are looked at for the first time; zero once they are.
	findAt time.Time
	// stop ends the watch; nil without one. unwatched is why there is none, and retryAt when a refused one is tried again.
	stop      func()
	unwatched error
	retryAt   time.Time
	// ended counts the watches that could not be had, or were ended for their noise, and noUntil is how long no write brings
	// another one.
	ended   int
	noUntil time.Time
}

// newReceipts returns the receipts of a volume whose attributes have names that begin with prefix. wake has the volume
// reconciled at a time.
func newReceipts(opens Opens, prefix string, wake func(at time.Time)) *openReceipts {
	return &openReceipts{opens: opens, inbox: &inbox{wake: wake}, writes: writer.Options{AttributePrefix: prefix}}
}

// bind says how the volume is written. It returns the same with what receipts need to hear of.
func (r *openReceipts) bind(writes writer.Options, versionsPath string) writer.Options {
	if r.opens != nil {
		writes.Rewritten, writes.Removing = r.rewritten, r.removing
	}
	r.writes, r.versionsPath = writes, versionsPath
	delete(r.files, versionsPath)
	return writes
}

// find has the receipts of a volume that was found looked at, later: while no plugin ran, nobody saw who opened its files.
func (r *openReceipts) find(at time.Time) {
	if r.opens != nil {
		r.findAt = at
	}
}

// dueAt returns when save is due; zero for never.
func (r *openReceipts) dueAt() time.Time {
	if r.opens == nil {
		return time.Time{}
	}
	return earlier(earlier(r.findAt, r.retryAt), r.inbox.dueAt())
}

// close ends the watch of a volume whose contents are gone, or nobody's any more. Nothing is due then.
func (r *openReceipts) close() {
	if r.stop != nil {
		r.stop()
	}
	r.inbox.take()
	*r = openReceipts{opens: r.opens, inbox: r.inbox, writes: r.writes, versionsPath: r.versionsPath}
}

// beforeWrite looks at the files of a volume that was found before a write changes them.
func (r *openReceipts) beforeWrite(ctx context.Context, root *os.Root) {
	if !r.findAt.IsZero() {
		r.look(ctx, root, true)
	}
}

// afterWrite notes the files that are shown after a write that has changed some: those of a tree in a generation, or whatever
// is there, with a nil tree. visible says that somebody may have opened them by now.
func (r *openReceipts) afterWrite(ctx context.Context, root *os.Root, generation string, tree *volume.Payload, visible bool) {
	isKnown := r.unread == nil && (r.stop != nil || !visible) // all that was there before, and each open since
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

// note takes the files of a tree that was just written, without opening them. A file that has another ID than before is new.
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

// save gives the files that were opened their receipts, and does what else is due.
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
	if err := r.setReceipts(root, opened); err != nil { // they are known as long as this process runs
		klog.FromContext(ctx).Error(err, "Can't keep receipts")
	}
	if isDue(r.findAt, now) || isDue(r.retryAt, now) {
		r.look(ctx, root, true)
	}
}

// miss notes that each file without a receipt may have been opened.
func (r *openReceipts) miss() {
	for _, file := range r.files {
		file.missed = file.missed || file.Opened.IsZero()
	}
}

// setReceipts has files carry their receipts. Then Opens reports them no more.
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

// look reads which files are shown, and has their opens watched. A file that is known stays what it was. missed says that
// the others may have been opened before.
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
	case errors.Is(err, fs.ErrNotExist): // somebody has removed it; the next write brings another one
		r.files, r.unread = nil, err
	default:
		r.files, r.unread = nil, err
		r.retry()
		klog.FromContext(ctx).Error(err, "Can't look at the receipts of a volume")
	}
}

// read reads which files a generation has. Those of no object need no receipt: the versions file, and what was emptied.
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
		known.reported = r.opens.Reads() + 2
		return r.opens.Ignore(file)
	})
	r.generation, r.files = g.Name, files
	return err
}

// removing has Opens report no more a file that can get no receipt; see writer.Options.Removing. Without it, whoever has the
// file open could make noise for ever.
func (r *openReceipts) removing(file int) {
	if r.stop != nil {
		_ = r.opens.Ignore(file) // noise then ends the watch
	}
}

// watch watches the file system of a generation whose files are known, if it is not watched and may be.
func (r *openReceipts) watch(ctx context.Context, g *writer.Generation) {
	if r.stop != nil || errors.Is(r.unwatched, receipts.ErrNoisy) && time.Now().Before(r.noUntil) {
		return
	}
	stop, err := r.opens.Watch(g.Fd(), r.inbox.opened, r.inbox.lost)
	if err != nil {
		r.refuse(ctx, err)
		r.retry()
		return
	}
	r.stop, r.unwatched = stop, nil
}

// refuse notes why there is no watch. The log has each reason once.
func (r *openReceipts) refuse(ctx context.Context, err error) {
	if r.unwatched == nil || r.unwatched.Error() != err.Error() {
		klog.FromContext(ctx).Info("Opens of a volume's files are not watched", "reason", err.Error())
	}
	r.unwatched = err
	r.miss()
}

// retry has what failed tried again, later each time.
func (r *openReceipts) retry() {
	r.retryAt = time.Now().Add(min(rewatchMin<<min(r.ended, 10), rewatchMax))
	r.ended++
}

// endWatch takes in that Opens has ended the watch. One that was ended for its noise stays so for a while.
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

// rewritten notes that a file has another content, and forgets opens of it from before the last byte; see
// writer.Options.Rewritten. Of a file that was ignored for long enough none is queued.
func (r *openReceipts) rewritten(path string, file int) {
	id, err := r.opens.ID(file, "")
	if known := r.files[path]; known == nil || known.reported == 0 || r.opens.Reads() < known.reported {
		err = errors.Join(err, r.opens.Drain(drainTime))
	}
	err = errors.Join(err, r.opens.Listen(file))
	r.inbox.forget(id, err)
	delete(r.files, path) // it is read after the write
}

// states says of each of a volume's objects whether it was opened: each of its files has a receipt, and it has at least one.
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
