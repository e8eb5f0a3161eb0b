package publisher

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// maxUnopened is how many paths without a receipt are told of an object.
const maxUnopened = 8

// OpenState says whether an object that a volume shows was opened.
type OpenState string

// The states of receipts.
const (
	// OpenYes: each of its files was opened since it shows what it shows.
	OpenYes OpenState = "yes"
	// OpenNo: at least one was not.
	OpenNo OpenState = "no"
	// OpenUnknown: opens of those that have no receipt may have been missed.
	OpenUnknown OpenState = "unknown"
	// OpenUnsupported: opens can't be watched here.
	OpenUnsupported OpenState = "unsupported"
)

// OpenStates returns all of them.
func OpenStates() []OpenState { return []OpenState{OpenYes, OpenNo, OpenUnknown, OpenUnsupported} }

// OpenState returns that of an object.
func (s *VolumeStatus) OpenState(ref volume.Ref) OpenState {
	switch o := s.Opened[ref]; {
	case !s.OpensWatched:
		return OpenUnsupported
	case o == nil:
		return OpenUnknown
	default:
		return o.State
	}
}

// Opened tells of the receipts of an object's files in a volume.
type Opened struct {
	State OpenState
	// At is when the last of them got its receipt, where all have one. Since is when the last one came to show what it shows.
	At, Since time.Time
	// Unopened are the paths of files without a receipt, at most 8 of them, and Count is how many there are.
	Unopened []string
	Count    int
}

// receiptTime is how long receipts wait at most: until generations are pruned, and not while other volumes change.
const receiptTime = 2 * pruneTime

// reads is what is known of who has opened the files that a volume shows.
type reads struct {
	// findAt is when they are looked at, of a volume that was found; zero once they are. stop ends the watch of the file
	// system, and generation is what they are in.
	findAt     time.Time
	stop       func()
	generation string
	// files are by path. noted says that those of the last write are known.
	files map[string]*shownFile
	noted bool
	// failed says that opens can't be watched.
	failed bool
}

// shownFile is a file with one content. A link of it in another generation is the same one.
type shownFile struct {
	writer.Receipt
	// id is what names it to Opens.
	id string
	// missed says that opens may have been missed, as long as it has no receipt.
	missed bool
}

// miss notes that each file without a receipt may have been opened.
func (r *reads) miss() {
	for _, file := range r.files {
		file.missed = file.missed || file.Opened.IsZero()
	}
}

// OpensLost notes that opens of files of any volume may have been missed.
func (p *Publisher) OpensLost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range p.volumes {
		v.opensLost = true
		p.wake(v, time.Now())
	}
}

// fileOpened notes opens of files. It does not block.
func (v *vol) fileOpened(ids []string) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	now := time.Now()
	if v.opened == nil {
		v.opened, v.receiveAt = map[string]time.Time{}, now.Add(receiptTime)
	}
	for _, id := range ids {
		if _, ok := v.opened[id]; !ok {
			v.opened[id] = now
		}
	}
	v.p.wake(v, v.receiveAt)
}

// findReceipts looks, once, which files of a volume have receipts that this process has not written, before they change. That
// waits until a restart is over: while no plugin ran, nobody saw who opened the others.
func (v *vol) findReceipts(ctx context.Context, g *writer.Generation) {
	r := &v.contents.reads
	if r.findAt.IsZero() {
		return
	}
	r.findAt = time.Time{}
	v.lookAtReceipts(ctx, g)
	r.miss()
	v.tellOpened(ctx, false)
}

// withShown calls do with the generation that is shown, if there is one.
func (v *vol) withShown(ctx context.Context, mnt Mount, do func(context.Context, *writer.Generation)) {
	g, err := writer.OpenGeneration(mnt.Root(), v.writerOptions(), "")
	switch {
	case err == nil:
		defer g.Close()
		do(ctx, g)
	case !errors.Is(err, fs.ErrNotExist):
		klog.FromContext(ctx).Error(err, "Can't look at the receipts of a volume")
	}
}

// opensDue returns when files that were opened get their receipts, zero if there are none.
func (v *vol) opensDue() time.Time {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	switch {
	case v.opensLost:
		return v.since // at once
	case v.opened == nil:
		return time.Time{}
	default:
		return v.receiveAt
	}
}

// keepReceipts gives the files that were opened their receipts, also before that is due.
func (v *vol) keepReceipts(ctx context.Context, mnt Mount) {
	if v.opensDue().IsZero() {
		return
	}
	v.p.mu.Lock()
	opened, lost := v.opened, v.opensLost
	v.opened, v.opensLost = nil, false
	v.p.mu.Unlock()
	r := &v.contents.reads
	var news []*shownFile
	for _, file := range r.files {
		if at, ok := opened[file.id]; ok && file.Opened.IsZero() {
			file.Opened = at
			news = append(news, file)
		}
	}
	if lost {
		r.miss()
	}
	if err := v.saveReceipts(mnt, news); err != nil { // they are known as long as this process runs
		klog.FromContext(ctx).Error(err, "Can't keep receipts")
	}
	v.tellOpened(ctx, true)
}

// saveReceipts has files carry their receipts. Then Opens tells of them no more.
func (v *vol) saveReceipts(mnt Mount, files []*shownFile) error {
	if len(files) == 0 {
		return nil
	}
	g, err := writer.OpenGeneration(mnt.Root(), v.writerOptions(), v.contents.reads.generation)
	if err != nil {
		return err
	}
	defer g.Close()
	for _, file := range files {
		err = errors.Join(err, g.SetReceipt(file.Path, file.Opened, v.p.opts.Opens.Ignore))
	}
	return err
}

// lookAtReceipts reads the receipts of the files that are shown, and has their opens watched. Files that are known stay what
// they were.
func (v *vol) lookAtReceipts(ctx context.Context, g *writer.Generation) {
	r, files := &v.contents.reads, map[string]*shownFile{}
	err := g.Receipts(func(receipt writer.Receipt, file int) error {
		id, err := v.p.opts.Opens.ID(file, "")
		if err != nil {
			return err
		}
		if known := r.files[receipt.Path]; known != nil && known.id == id && known.Written.Equal(receipt.Written) {
			known.Refs, known.Any = receipt.Refs, receipt.Any // a rewrite may have changed them
			files[receipt.Path] = known
			return nil
		}
		files[receipt.Path] = &shownFile{Receipt: receipt, id: id}
		if receipt.Opened.IsZero() {
			return nil
		}
		return v.p.opts.Opens.Ignore(file)
	})
	r.generation, r.files = g.Name, files
	v.watch(ctx, g, err)
}

// beforeSwitch has the opens of a volume's files watched; see writer.Options.
func (v *vol) beforeSwitch(ctx context.Context, present *writer.Generation) {
	if present != nil {
		v.findReceipts(ctx, present)
	}
}

// switched notes the files that are shown now; see writer.Options. What is linked stays what it is.
func (v *vol) switched(ctx context.Context, g *writer.Generation) {
	var failed error
	r, files, now := &v.contents.reads, make(map[string]*shownFile, len(g.Tree.Files)), time.Now()
	for i := range g.Tree.Files {
		file := &g.Tree.Files[i]
		known := r.files[file.Path]
		if known == nil || !g.Linked(i) {
			id, err := v.p.opts.Opens.ID(g.Fd(), file.Path)
			failed = cmp.Or(failed, err)
			known = &shownFile{Receipt: writer.Receipt{Path: file.Path, Refs: file.Refs, Written: now}, id: id, missed: g.Linked(i)}
		}
		files[file.Path] = known
	}
	r.generation, r.files, r.findAt, r.noted = g.Name, files, time.Time{}, true
	v.watch(ctx, g, failed)
	v.tellOpened(ctx, false)
}

// watch watches the file system of a generation. err is why its files can't be told from others.
func (v *vol) watch(ctx context.Context, g *writer.Generation, err error) {
	r := &v.contents.reads
	delete(r.files, v.spec.versionsPath) // it is of no object
	if err == nil && r.stop == nil {
		r.stop, err = v.p.opts.Opens.Watch(g.Fd(), v.fileOpened)
	}
	if r.failed = err != nil; r.failed { // the files matter more
		klog.FromContext(ctx).Error(err, "Can't watch who opens the files of a volume")
	}
}

// beforeRewrite looks at receipts that a rewrite in place would remove.
func (v *vol) beforeRewrite(ctx context.Context, mnt Mount) {
	if v.spec.InPlace() && !v.contents.reads.findAt.IsZero() {
		v.withShown(ctx, mnt, v.findReceipts)
	}
}

// rewritten notes that a file has another content, and forgets opens of it from before the last byte; see
// writer.Options.Rewritten.
func (v *vol) rewritten(path string, file int) {
	id, err := v.p.opts.Opens.ID(file, "")
	err = errors.Join(err, v.p.opts.Opens.Drain(), v.p.opts.Opens.Listen(file))
	v.p.mu.Lock()
	v.opensLost = v.opensLost || err != nil
	delete(v.opened, id)
	v.p.mu.Unlock()
	delete(v.contents.reads.files, path) // it is read after the write
}

// writerOptions returns how the volume is written.
func (v *vol) writerOptions() writer.Options {
	opts := writer.Options{AttributePrefix: v.p.opts.AttributePrefix, InPlace: v.spec.InPlace()}
	if v.p.opts.Opens != nil {
		opts.BeforeSwitch, opts.Switched, opts.Rewritten = v.beforeSwitch, v.switched, v.rewritten
	}
	return opts
}

// written notes which files a write has left.
func (v *vol) written(ctx context.Context, mnt Mount, result writer.Result) {
	r := &v.contents.reads
	if v.p.opts.Opens != nil && result.Changed && !r.noted {
		v.withShown(ctx, mnt, v.lookAtReceipts)
		v.tellOpened(ctx, false)
	}
	r.noted = false
}

// dropReceipts ends the watch of a volume whose contents are gone, or nobody's any more.
func (v *vol) dropReceipts() {
	if v.contents.reads.stop != nil {
		v.contents.reads.stop()
	}
	v.contents.reads = reads{}
	v.set(func() { v.told.opened, v.opened = nil, nil })
}

// tellOpened says anew which objects were opened. news says that it tells of those that have just been.
func (v *vol) tellOpened(ctx context.Context, news bool) {
	r, told := &v.contents.reads, map[volume.Ref]*Opened{}
	for _, ref := range v.spec.refs {
		told[ref] = &Opened{State: OpenYes}
	}
	for _, path := range slices.Sorted(maps.Keys(r.files)) {
		file := r.files[path]
		refs := file.Refs
		if file.Any {
			refs = v.spec.refs
		}
		for _, ref := range refs {
			if o := told[ref]; o != nil {
				o.add(file)
			}
		}
	}
	for ref, o := range told {
		if o.State != OpenYes {
			o.At = time.Time{}
		}
		switch was := v.told.opened[ref]; {
		case r.failed:
			o.State = OpenUnsupported
		case news && o.State == OpenYes && was != nil && was.State != OpenYes:
			took := o.At.Sub(o.Since)
			v.p.opts.Observer.Opened(took)
			klog.FromContext(ctx).V(2).Info("Object was opened", "ref", ref.String(), "version", v.contents.shown[ref].ResourceVersion, "after", took)
		}
	}
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	v.told.opened = told
}

// add takes in a file.
func (o *Opened) add(file *shownFile) {
	if file.Written.After(o.Since) {
		o.Since = file.Written
	}
	if !file.Opened.IsZero() {
		if file.Opened.After(o.At) {
			o.At = file.Opened
		}
		return
	}
	if !file.missed {
		o.State = OpenNo
	} else if o.State == OpenYes {
		o.State = OpenUnknown
	}
	if o.Count++; len(o.Unopened) < maxUnopened {
		o.Unopened = append(o.Unopened, short(file.Path))
	}
}
