package publisher

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
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

// reads is what is known of who has opened the files of a volume's present generation.
type reads struct {
	// generation is its name, "" until its files were looked at.
	generation string
	files      []writer.Receipt
	// missed holds files without a receipt that may have been opened, unseen.
	missed map[fileID]bool
	// watch tells of opens in it, and before of those in the one before: a file may be linked into both.
	watch, before Watch
	// failed says that it can't be watched.
	failed bool
}

// fileID tells a file with its content from all others of a volume.
type fileID struct {
	inode   uint64
	written time.Time
}

func idOf(r *writer.Receipt) fileID { return fileID{r.Inode, r.Written} }

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
	v.p.wake(v, now)
}

// receive gives the files that were opened their receipts. Of a volume that this process has not written it first looks which
// ones have theirs: while no plugin ran, nobody saw who opened the others.
func (v *vol) receive(ctx context.Context) error {
	r := &v.contents.reads
	if v.p.opts.Opens == nil || !v.mounted {
		return nil
	}
	v.p.mu.Lock()
	opened, lost := v.opened, v.opensLost
	v.opened, v.opensLost = nil, false
	v.p.mu.Unlock()
	found := r.generation == ""
	if len(opened) == 0 && !found && !lost {
		return nil
	}
	if found || len(opened) > 0 {
		if err := v.through(ctx, func(mnt Mount) error {
			if found {
				v.lookAtReceipts(ctx, mnt)
			}
			for generation, files := range opened {
				v.setReceipts(ctx, mnt, generation, files)
			}
			return nil
		}); err != nil {
			v.missOpens() // those that were taken from the list are lost
			return err
		}
	}
	if found || lost {
		v.missOpens()
	}
	v.tellOpened(ctx, !found)
	return nil
}

// missOpens notes that each file without a receipt may have been opened.
func (v *vol) missOpens() {
	r := &v.contents.reads
	for i := range r.files {
		if r.files[i].Opened.IsZero() {
			r.missed[idOf(&r.files[i])] = true
		}
	}
}

// lookAtReceipts reads the receipts of the present generation, and watches its files.
func (v *vol) lookAtReceipts(ctx context.Context, mnt Mount) {
	g, err := writer.OpenGeneration(mnt.Root(), v.writerOptions(), "")
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			klog.FromContext(ctx).Error(err, "Can't look at the receipts of a volume")
		}
		return
	}
	defer g.Close()
	v.adopt(v.observe(ctx, g))
}

// observe reads the receipts of a generation, and watches the directories that have a file without one.
func (v *vol) observe(ctx context.Context, g *writer.Generation) *reads {
	opens := v.p.opts.Opens
	next := &reads{generation: g.Name, missed: map[fileID]bool{}}
	next.watch = opens.Watch(func(paths []string) { v.fileOpened(g.Name, paths) })
	var watched []writer.Receipt
	err := g.Receipts(func(r writer.Receipt, file int) error {
		if r.Path == v.spec.versionsPath {
			return nil // it is of no object
		}
		next.files = append(next.files, r)
		if r.Opened.IsZero() || v.spec.InPlace() { // where a rewrite takes the receipt, the next open must be seen at once
			watched = append(watched, r)
		}
		if !r.Opened.IsZero() {
			return opens.Ignore(file)
		}
		return nil
	})
	if err == nil {
		err = g.Dirs(watched, func(dir string, fd int) error { return next.watch.Add(fd, dir) })
	}
	slices.SortFunc(next.files, func(a, b writer.Receipt) int { return strings.Compare(a.Path, b.Path) })
	if err != nil { // the files matter more
		klog.FromContext(ctx).Error(err, "Can't watch who opens the files of a volume")
		next.failed = true
	}
	return next
}

// adopt makes a generation the present one. Files that were linked from the one before stay what they were.
func (v *vol) adopt(next *reads) {
	r := &v.contents.reads
	for i := range next.files {
		if id := idOf(&next.files[i]); r.missed[id] && next.files[i].Opened.IsZero() {
			next.missed[id] = true
		}
	}
	if r.before != nil {
		_ = r.before.Stop()
	}
	next.before = r.watch
	*r = *next
	v.next = nil
}

// announce watches a generation that is about to be shown; see writer.Options.BeforeSwitch.
func (v *vol) announce(ctx context.Context, g *writer.Generation) {
	v.forgetNext()
	v.next = v.observe(ctx, g)
}

// forgetNext ends the watch of a generation that was not shown after all.
func (v *vol) forgetNext() {
	if v.next != nil {
		_ = v.next.watch.Stop()
		v.next = nil
	}
}

// rewritten forgets opens of a file that was rewritten in place from before its last byte; see writer.Options.Rewritten.
func (v *vol) rewritten(path string, file int) {
	_, err := v.p.opts.Opens.Drain()
	if err = errors.Join(err, v.p.opts.Opens.Listen(file)); err != nil {
		v.contents.reads.failed = true
	}
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	for _, files := range v.opened {
		delete(files, path)
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
	case v.next != nil && v.next.generation == result.Generation:
		v.adopt(v.next)
	default:
		v.lookAtReceipts(ctx, mnt)
	}
	v.tellOpened(ctx, false)
}

// setReceipts gives files of a generation their receipts, unless it has gone.
func (v *vol) setReceipts(ctx context.Context, mnt Mount, generation string, opened map[string]time.Time) {
	g, err := writer.OpenGeneration(mnt.Root(), v.writerOptions(), generation)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		klog.FromContext(ctx).Error(err, "Can't keep receipts")
		v.missOpens()
		return
	}
	defer g.Close()
	r := &v.contents.reads
	for path, at := range opened {
		err := g.SetReceipt(path, at, func(file int) error {
			var st unix.Stat_t
			if err := unix.Fstat(file, &st); err != nil {
				return err
			}
			// It may be a file of the generation before, and linked.
			i := slices.IndexFunc(r.files, func(f writer.Receipt) bool { return f.Inode == st.Ino })
			if i >= 0 && r.files[i].Opened.IsZero() {
				r.files[i].Opened = at
				delete(r.missed, idOf(&r.files[i]))
			}
			return v.p.opts.Opens.Ignore(file)
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			klog.FromContext(ctx).Error(err, "Can't keep a receipt")
			v.missOpens()
		}
	}
}

// dropReceipts ends the watch of a volume whose contents are gone, or nobody's any more.
func (v *vol) dropReceipts() {
	v.forgetNext()
	for _, watch := range []Watch{v.contents.reads.before, v.contents.reads.watch} {
		if watch != nil {
			_ = watch.Stop()
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
	for i := range r.files {
		file := &r.files[i]
		refs := file.Refs
		if file.Any {
			refs = v.spec.refs
		}
		for _, ref := range refs {
			if o := told[ref]; o != nil {
				o.add(file, r.missed[idOf(file)])
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
	v.set(func() { v.told.opened = told })
}

// add takes in a file.
func (o *Opened) add(file *writer.Receipt, missed bool) {
	if file.Written.After(o.Since) {
		o.Since = file.Written
	}
	if !file.Opened.IsZero() {
		if file.Opened.After(o.At) {
			o.At = file.Opened
		}
		return
	}
	if !missed {
		o.State = OpenNo
	} else if o.State == OpenYes {
		o.State = OpenUnknown
	}
	if o.Count++; len(o.Unopened) < maxUnopened {
		o.Unopened = append(o.Unopened, short(file.Path))
	}
}
