package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// firePace is how often each reader reads: often enough to see nearly every
// generation, and seldom enough that the plugin gets its share of the machine.
const firePace = 3 * time.Millisecond

// fireReadings count what the readers did.
type fireReadings struct {
	reads
	// generations and files are what was read whole.
	generations, files atomic.Int64
	// asRoot is how many readers could not become somebody who may be refused.
	asRoot atomic.Int64
}

// fireReader reads one volume after the other. It is for one goroutine, and closed by it.
type fireReader struct {
	*fire
	choose *rand.Rand
	last   map[*fireObject]int
	// dirs are the volumes' own directories: nobody may come by way of the paths, and in
	// a container nobody does.
	dirs map[*fireVolume]*os.File
}

func newFireReader(f *fire, number int) (*fireReader, error) {
	r := &fireReader{
		fire:   f,
		choose: rand.New(rand.NewPCG(f.seed, uint64(100+number))),
		last:   make(map[*fireObject]int),
		dirs:   make(map[*fireVolume]*os.File),
	}
	for _, v := range f.volumes {
		dir, err := os.Open(f.n.Target(v.Volume))
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		r.dirs[v] = dir
	}
	return r, nil
}

func (r *fireReader) close() error {
	var errs []error
	for _, dir := range r.dirs {
		errs = append(errs, dir.Close())
	}
	return errors.Join(errs...)
}

// run reads until ctx ends or the test has failed, as a user who owns nothing: to root
// nothing is ever forbidden.
func (r *fireReader) run(ctx context.Context, read func(*fireVolume) error) {
	runtime.LockOSThread() // for good: the thread is of no use to anybody else
	if !becomeNobody() {
		r.readings.asRoot.Add(1)
	}
	tick := time.NewTicker(firePace)
	defer tick.Stop()
	for !r.n.t.Failed() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		begin := time.Now()
		if err := r.readings.count(begin, read(r.volumes[r.choose.IntN(len(r.volumes))])); err != nil {
			r.n.t.Error(err)
		}
	}
}

// becomeNobody has this thread access files as a user whom no file belongs to. It
// reports false in a user namespace that has no such user.
func becomeNobody() bool {
	const nobody, query = 65534, -1
	if err := errors.Join(unix.Setfsgid(nobody), unix.Setfsuid(nobody)); err != nil {
		return false
	}
	uid, err := unix.SetfsuidRetUid(query)
	return err == nil && uid == nobody
}

// openAt opens what the kernel finds at a path in a directory.
func openAt(dir *os.File, path string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, gone("open "+dir.Name()+"/"+path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func readKey(dir *os.File, path string) (string, error) {
	f, err := openAt(dir, path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	return string(data), err
}

// generation opens ..data once and reads every key of every source from there.
func (r *fireReader) generation(v *fireVolume) error {
	floors := v.floors()
	dir, err := openAt(r.dirs[v], "..data")
	if err != nil {
		return err
	}
	defer dir.Close()
	name, err := openedName(dir)
	if err != nil {
		return err
	}
	var versions [3]int
	for i, o := range v.objects {
		if versions[i], err = wholeObject(dir, o); err != nil {
			return err
		}
		if err := r.forward(o, versions[i], floors[i]); err != nil {
			return err
		}
	}
	r.readings.generations.Add(1)
	return v.note(name, versions)
}

// openedName returns the name of the directory that was opened, whatever ..data
// points at by now.
func openedName(dir *os.File) (string, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	return strings.TrimSuffix(filepath.Base(path), " (deleted)"), err
}

// wholeObject reads all keys of one object, which have to be of one version.
func wholeObject(dir *os.File, o *fireObject) (int, error) {
	version := -1
	for i := range fireKeys {
		content, err := readKey(dir, o.key(i))
		if err != nil {
			return 0, err
		}
		got, err := o.versionOf(content)
		if err != nil {
			return 0, err
		}
		if version >= 0 && got != version {
			return 0, fmt.Errorf("one generation has %s in the versions %d and %d", o.name, version, got)
		}
		version = got
	}
	return version, nil
}

// link reads one file by the path that a container uses.
func (r *fireReader) link(v *fireVolume) error {
	i := r.choose.IntN(len(v.objects))
	o := v.objects[i]
	floor := o.floor.Load()
	content, err := readKey(r.dirs[v], o.key(r.choose.IntN(fireKeys)))
	if err != nil {
		return err
	}
	version, err := o.versionOf(content)
	if err != nil {
		return err
	}
	r.readings.files.Add(1)
	return r.forward(o, version, floor)
}

// forward checks that a version is no older than what this reader saw last, nor than
// what any reader had seen when the read began.
func (r *fireReader) forward(o *fireObject, version int, floor int64) error {
	if version < r.last[o] || int64(version) < floor {
		return fmt.Errorf("%s went back to version %d: this reader saw %d before, another one %d", o.name, version, r.last[o], floor)
	}
	r.last[o] = version
	for now := o.floor.Load(); int64(version) > now && !o.floor.CompareAndSwap(now, int64(version)); now = o.floor.Load() {
	}
	return nil
}

func (v *fireVolume) floors() [3]int64 {
	var floors [3]int64
	for i, o := range v.objects {
		floors[i] = o.floor.Load()
	}
	return floors
}

// note checks that a generation shows to all readers what it showed to the first: it
// comes from one write, over all sources.
func (v *fireVolume) note(name string, versions [3]int) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if before, ok := v.seen[name]; ok && before != versions {
		return fmt.Errorf("generation %s showed the versions %v and now shows %v", name, before, versions)
	}
	v.seen[name] = versions
	return nil
}

// report prints what was seen, and fails where that is too little to mean anything.
func (f *fire) report() {
	f.n.t.Helper()
	distinct := 0
	for _, v := range f.volumes {
		distinct += len(v.seen)
	}
	made, switches := 0, f.switches.total()
	for _, v := range f.volumes {
		for _, o := range v.objects {
			made += o.version
		}
	}
	r := &f.readings
	f.n.t.Logf("%d updates, %d switches of ..data; %d whole generations read, %d different ones, and %d single files; %d late reads, %d of %d readers as root",
		made, switches, r.generations.Load(), distinct, r.files.Load(), r.late.Load(), r.asRoot.Load(), fireReaders+fireLinks)
	if distinct < made/40 || r.files.Load() < int64(made/40) {
		f.n.t.Errorf("the readers saw too little")
	}
	if err := r.check(); err != nil {
		f.n.t.Error(err)
	}
	f.checkUsers()
}

// checkUsers checks that the readers were somebody whom a file may be forbidden to.
// Only the machine's root can be sure to become that.
func (f *fire) checkUsers() {
	f.n.t.Helper()
	switch asRoot := f.readings.asRoot.Load(); {
	case asRoot == 0:
	case harness.IsRoot():
		f.n.t.Errorf("%d readers read as root, to whom nothing is ever forbidden", asRoot)
	default:
		f.n.t.Logf("NOT SHOWN in this user namespace: that no read is ever forbidden; %d readers read as root", asRoot)
	}
}
