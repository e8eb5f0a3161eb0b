package publisher

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"
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
	present, before generation
	// unsaved holds files that were opened, and don't carry that yet.
	unsaved map[string]*shownFile
	// failed says that opens can't be watched.
	failed bool
}

// generation is one whose files are watched; the zero one stands for none.
type generation struct {
	name string
	// files are by path. What is linked into two generations is one shownFile.
	files map[string]*shownFile
	watch Watch
}

// shownFile is a file with one content.
type shownFile struct {
	writer.Receipt
	// missed says that opens may have been missed, as long as it has no receipt.
	missed bool
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

// fileOpened notes opens of files of a generation. It does not block.
func (v *vol) fileOpened(generation string, paths []string) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	now := time.Now()
	if v.opened == nil {
		v.opened = map[string]map[string]time.Time{}
	}
	if v.opened[generation] == nil {
		v.opened[generation] = map[string]time.Time{}
	}
	for _, path := range paths {
		if _, ok := v.opened[generation][path]; !ok {
			v.opened[generation][path] = now
		}
	}
	if v.receiveAt.IsZero() {
		v.receiveAt = now.Add(receiptTime)
	}
	v.p.wake(v, v.receiveAt)
}

// find looks, once, which files of a volume have receipts that this process has not written. While no plugin ran, nobody saw
// who opened the others.
func (v *vol) find(ctx context.Context) error {
	if v.p.opts.Opens == nil || !v.mounted || v.contents.reads.present.name != "" {
		return nil
	}
	return v.through(ctx, func(mnt Mount) error {
		v.lookAtReceipts(ctx, mnt)
		v.missOpens()
		v.tellOpened(ctx, false)
		return nil
	})
}

// receive gives the files that were opened their receipts when that is due, and returns when it is next.
func (v *vol) receive(ctx context.Context) (next time.Time, err error) {
	switch at := v.opensDue(); {
	case at.IsZero() || !v.mounted:
		return time.Time{}, nil
	case time.Now().Before(at):
		return at, nil
	}
	return time.Time{}, v.through(ctx, func(mnt Mount) error { v.keepReceipts(ctx, mnt); return nil })
}

// opensDue returns when files that were opened get their receipts, zero if there are none.
func (v *vol) opensDue() time.Time {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	switch {
	case v.opensLost:
		return v.since // at once
	case len(v.opened) == 0 && len(v.contents.reads.unsaved) == 0:
		v.receiveAt = time.Time{}
	}
	return v.receiveAt
}

// keepReceipts is receive through a handle on the volume's mount, also before that is due.
func (v *vol) keepReceipts(ctx context.Context, mnt Mount) {
	if v.opensDue().IsZero() {
		return
	}
	v.takeOpens()
	v.saveReceipts(ctx, mnt)
	v.tellOpened(ctx, true)
}

// takeOpens notes of the files which ones were opened.
func (v *vol) takeOpens() {
	v.p.mu.Lock()
	opened, lost := v.opened, v.opensLost
	v.opened, v.opensLost = nil, false
	v.p.mu.Unlock()
	r := &v.contents.reads
	for _, g := range []*generation{&r.before, &r.present} {
		for path, at := range opened[g.name] {
			file := g.files[path]
			if file == nil || !file.Opened.IsZero() {
				continue
			}
			file.Opened = at
			if r.present.files[path] == file { // else it has been replaced
				r.unsaved[path] = file
			}
		}
	}
	if lost {
		v.missOpens()
	}
}

// missOpens notes that each file without a receipt may have been opened.
func (v *vol) missOpens() {
	for _, file := range v.contents.reads.present.files {
		file.missed = file.missed || file.Opened.IsZero()
	}
}

// saveReceipts has files of the present generation carry their receipts, which then tell of no open any more.
func (v *vol) saveReceipts(ctx context.Context, mnt Mount) {
	r := &v.contents.reads
	if len(r.unsaved) == 0 {
		return
	}
	g, err := writer.OpenGeneration(mnt.Root(), v.writerOptions(), r.present.name)
	if err == nil {
		defer g.Close()
		for path, file := range r.unsaved {
			if r.present.files[path] == file {
				err = errors.Join(err, g.SetReceipt(path, file.Opened, v.p.opts.Opens.Ignore))
			}
		}
	}
	clear(r.unsaved)
	if err != nil { // they are known as long as this process runs
		klog.FromContext(ctx).Error(err, "Can't keep receipts")
	}
}

// lookAtReceipts reads the receipts of the files that are shown, and watches these. Files that are known stay what they were.
func (v *vol) lookAtReceipts(ctx context.Context, mnt Mount) {
	g, err := writer.OpenGeneration(mnt.Root(), v.writerOptions(), "")
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			klog.FromContext(ctx).Error(err, "Can't look at the receipts of a volume")
		}
		return
	}
	defer g.Close()
	old, files := v.contents.reads.present.files, map[string]*shownFile{}
	err = g.Receipts(func(r writer.Receipt, file int) error {
		if known := old[r.Path]; known != nil && known.Written.Equal(r.Written) {
			known.Refs, known.Any = r.Refs, r.Any // a rewrite may have changed them
			files[r.Path] = known
			return nil
		}
		files[r.Path] = &shownFile{Receipt: r}
		if r.Opened.IsZero() {
			return nil
		}
		return v.p.opts.Opens.Ignore(file)
	})
	v.adopt(v.watch(ctx, g, files, err))
}

// announce watches a generation that is about to be shown; see writer.Options.BeforeSwitch. What is linked stays what it is.
func (v *vol) announce(ctx context.Context, g *writer.Generation) {
	v.forgetNext()
	old, now := v.contents.reads.present.files, time.Now()
	files := make(map[string]*shownFile, len(g.Tree.Files))
	for i := range g.Tree.Files {
		file := &g.Tree.Files[i]
		known := old[file.Path]
		if known == nil || !g.Linked(i) {
			known = &shownFile{Receipt: writer.Receipt{Path: file.Path, Refs: file.Refs, Written: now}}
		}
		files[file.Path] = known
	}
	next := v.watch(ctx, g, files, nil)
	v.next = &next
}

// watch watches the directories of a generation that have a file without a receipt. err is why its files are not known.
func (v *vol) watch(ctx context.Context, g *writer.Generation, files map[string]*shownFile, err error) generation {
	delete(files, v.spec.versionsPath) // it is of no object
	next := generation{name: g.Name, files: files}
	next.watch = v.p.opts.Opens.Watch(func(paths []string) { v.fileOpened(g.Name, paths) })
	dirs := map[string]bool{}
	for _, file := range files {
		if file.Opened.IsZero() || v.spec.InPlace() { // where a rewrite takes the receipt, the next open must be seen at once
			dirs[path.Dir(file.Path)] = true
		}
	}
	if err == nil {
		err = g.Dirs(dirs, func(dir string, fd int) error { return next.watch.Add(fd, dir) })
	}
	if err != nil { // the files matter more
		klog.FromContext(ctx).Error(err, "Can't watch who opens the files of a volume")
	}
	v.contents.reads.failed = err != nil
	return next
}

// adopt makes a generation the present one. The one before is watched on: a file of it may be linked.
func (v *vol) adopt(next generation) {
	v.takeOpens()
	r := &v.contents.reads
	if r.before.watch != nil {
		_ = r.before.watch.Stop()
	}
	r.before, r.present = r.present, next
	if r.unsaved == nil {
		r.unsaved = map[string]*shownFile{}
	}
}

// forgetNext ends the watch of a generation that was not shown after all.
func (v *vol) forgetNext() {
	if v.next != nil {
		_ = v.next.watch.Stop()
		v.next = nil
	}
}

// rewritten notes that a file has another content, and forgets opens of it from before the last byte; see
// writer.Options.Rewritten.
func (v *vol) rewritten(path string, file int) {
	_, err := v.p.opts.Opens.Drain()
	err = errors.Join(err, v.p.opts.Opens.Listen(file))
	v.p.mu.Lock()
	v.opensLost = v.opensLost || err != nil
	for _, files := range v.opened {
		delete(files, path)
	}
	v.p.mu.Unlock()
	var st unix.Stat_t
	r := &v.contents.reads
	delete(r.unsaved, path)
	delete(r.present.files, path)
	if r.present.files != nil && unix.Fstat(file, &st) == nil { // else it is read after the write
		r.present.files[path] = &shownFile{Receipt: writer.Receipt{Path: path, Written: time.Unix(st.Mtim.Unix())}}
	}
}

// writerOptions returns how the volume is written.
func (v *vol) writerOptions() writer.Options {
	opts := writer.Options{AttributePrefix: v.p.opts.AttributePrefix, InPlace: v.spec.InPlace()}
	if v.p.opts.Opens != nil {
		opts.BeforeSwitch, opts.Rewritten = v.announce, v.rewritten
	}
	return opts
}

// written notes which files a write has left.
func (v *vol) written(ctx context.Context, mnt Mount, result writer.Result) {
	switch {
	case v.p.opts.Opens == nil:
		return
	case !result.Changed:
		v.forgetNext()
		return
	case v.next != nil && v.next.name == result.Generation && !v.spec.InPlace():
		v.adopt(*v.next)
		v.next = nil
	default:
		v.forgetNext()
		v.lookAtReceipts(ctx, mnt)
	}
	v.tellOpened(ctx, false)
}

// dropReceipts ends the watch of a volume whose contents are gone, or nobody's any more.
func (v *vol) dropReceipts() {
	v.forgetNext()
	for _, g := range []*generation{&v.contents.reads.before, &v.contents.reads.present} {
		if g.watch != nil {
			_ = g.watch.Stop()
		}
	}
	v.set(func() { v.told.opened, v.opened = nil, nil })
}

// tellOpened says anew which objects were opened. news says that it tells of those that have just been.
func (v *vol) tellOpened(ctx context.Context, news bool) {
	r, told := &v.contents.reads, map[volume.Ref]*Opened{}
	for _, ref := range v.spec.refs {
		told[ref] = &Opened{State: OpenYes}
	}
	for _, path := range slices.Sorted(maps.Keys(r.present.files)) {
		file := r.present.files[path]
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
