package integration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// firePace is how often each reader reads: often enough to see nearly every
// generation, and seldom enough that the plugin gets its share of the machine.
const firePace = 3 * time.Millisecond

// fireReadings count what the readers did.
type fireReadings struct {
	generations, files atomic.Int64
	// late reads were held up for so long that what they had begun to read was gone.
	late atomic.Int64
}

// fireReader reads one volume after the other. It is for one goroutine.
type fireReader struct {
	*fire
	choose *rand.Rand
	last   map[*fireObject]int
}

// run reads until ctx ends or the test has failed.
func (r *fireReader) run(ctx context.Context, read func(*fireVolume) error) {
	tick := time.NewTicker(firePace)
	defer tick.Stop()
	for !r.n.t.Failed() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		begin := time.Now()
		err := read(r.volumes[r.choose.IntN(len(r.volumes))])
		if errors.Is(err, fs.ErrNotExist) && time.Since(begin) > promptly {
			r.readings.late.Add(1)
			continue
		}
		if err != nil {
			r.n.t.Error(err)
		}
	}
}

// generation opens ..data once and reads every key of every source from there.
func (r *fireReader) generation(v *fireVolume) error {
	floors := v.floors()
	root, err := os.OpenRoot(filepath.Join(r.n.Target(v.Volume), "..data"))
	if err != nil {
		return err
	}
	defer root.Close()
	name, err := openedName(root)
	if err != nil {
		return err
	}
	var versions [3]int
	for i, o := range v.objects {
		if versions[i], err = wholeObject(root, o); err != nil {
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
func openedName(root *os.Root) (string, error) {
	dir, err := root.Open(".")
	if err != nil {
		return "", err
	}
	defer dir.Close()
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	return strings.TrimSuffix(filepath.Base(path), " (deleted)"), err
}

// wholeObject reads all keys of one object, which have to be of one version.
func wholeObject(root *os.Root, o *fireObject) (int, error) {
	version := -1
	for i := range fireKeys {
		data, err := root.ReadFile(o.key(i))
		if err != nil {
			return 0, err
		}
		got, err := o.versionOf(string(data))
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
	content, err := r.n.content(v.Volume, o.key(r.choose.IntN(fireKeys)))
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
	f.n.t.Logf("%d updates, %d switches of ..data; %d whole generations read, %d different ones, and %d single files; %d late reads",
		made, switches, r.generations.Load(), distinct, r.files.Load(), r.late.Load())
	if distinct < made/40 || r.files.Load() < int64(made/40) {
		f.n.t.Errorf("the readers saw too little")
	}
	if all := r.generations.Load() + r.files.Load(); r.late.Load() > all/20 {
		f.n.t.Errorf("%d of %d reads were too late to count", r.late.Load(), all)
	}
}
