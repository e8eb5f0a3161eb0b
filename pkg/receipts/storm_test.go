package receipts

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/expect"
)

// storms starts processes that open superseded files of a volume again and again, until the test ends.
func (v *volume) storms(processes int) {
	v.Helper()
	v.group.most = busy / 4 // a virtual machine may be too slow for more
	v.numbered(2000)
	for range processes {
		v.Cleanup(startStorm(v, v.path+"/1"))
	}
	v.must(os.RemoveAll(v.path + "/1")) // they have the files open
}

// TestAStormCostsItsOwnVolume: its watch is ended, everything else continues, and the queue is empty again.
func TestAStormCostsItsOwnVolume(t *testing.T) {
	v := newVolume(t)
	other := v.beside()
	other.dir("2", "key")
	root := v.dir(".")
	v.storms(4)
	_, noisy := v.watch()
	_, quiet := other.watch()
	v.runs()
	waitFor(t, func() bool { return noisy.end() != nil })
	v.must(v.group.Unmark(int(root.Fd())))
	expect.Is(t, "the end of the watch", noisy.end(), ErrNoisy)
	for range 4 {
		begin := time.Now()
		v.must(v.group.Drain(drainTime))
		expect.Between(t, "the time of a read", time.Since(begin), 0, 10*time.Second)
		other.cat("2/key")
		waitFor(t, func() bool { files, _ := quiet.take(); return len(files) > 0 })
	}
	waitFor(t, func() bool {
		n, err := unix.IoctlGetInt(v.group.fd, unix.TIOCINQ)
		return err == nil && n < 100*metadataSize
	})
	if v.overflows > 0 || quiet.end() != nil {
		t.Errorf("%d overflows, the other watch was ended: %v", v.overflows, quiet.end())
	}
}

// opensBeside watches another volume of an owner, and opens each of its files once.
func (v *volume) opensBeside(owner string, files int) *recorder {
	v.Helper()
	other := v.beside()
	other.owner = owner
	other.numbered(files)
	_, r := other.watch()
	run(v, job("burst", other.path+"/1", strconv.Itoa(files)))
	return r
}

// TestTheNoisiestAreEnded: the watches of an owner count together, and those of the noisiest owner end, the noisiest first and as few as leave
// the limit. All others report their opens, also one that is noisier than each watch of an attacker.
func TestTheNoisiestAreEnded(t *testing.T) {
	type watches struct {
		owner string
		files []int
		ended int
	}
	for most, owners := range map[int][]watches{
		100: {{"victim", []int{10}, 0}, {"attacker", slices.Repeat([]int{9}, 12), 2}},
		12:  {{"a", []int{3, 12, 2}, 1}, {"b", []int{10}, 1}, {"c", []int{1}, 0}},
	} {
		v := newVolume(t)
		v.group.most = most
		recorders := map[string][]*recorder{}
		for _, o := range owners {
			for _, n := range o.files {
				recorders[o.owner] = append(recorders[o.owner], v.opensBeside(o.owner, n))
			}
		}
		v.must(v.group.Drain(drainTime))
		for _, o := range owners {
			ended := 0
			for i, r := range recorders[o.owner] {
				files, _ := r.take()
				switch err := r.end(); {
				case errors.Is(err, ErrNoisy) && o.files[i] == slices.Max(o.files):
					ended++
				case err != nil || len(files) != o.files[i]:
					t.Errorf("watch %d of %s was ended: %v, and has reported %d files, want %d", i, o.owner, err, len(files), o.files[i])
				}
			}
			expect.Equal(t, "watches of "+o.owner+" that were ended", ended, o.ended)
		}
	}
}

// TestLatePauses: the group is discarded after more than 25 pauses in a row with too many late events.
func TestLatePauses(t *testing.T) {
	v := newVolume(t)
	_, r := v.watch()
	newPause := func(late int) {
		v.group.late = late
		_, _ = v.group.read(true, nil)
	}
	for range maxLate {
		newPause(v.group.most + 1)
	}
	newPause(v.group.most) // not too many: the next are the first in a row
	for range maxLate {
		newPause(v.group.most + 1)
	}
	if r.end() != nil {
		t.Fatalf("the watch was ended: %v", r.end())
	}
	newPause(v.group.most + 1)
	expect.Is(t, "the end of the watch", r.end(), errTooMany)
	_, again := v.watch()
	if newPause(v.group.most + 1); again.end() != nil { // the first of the next group
		t.Errorf("the next watch was ended: %v", again.end())
	}
}

// TestAMarkThatStays: if nobody removes it, the group is discarded. Each read ends, however fast new events arrive.
func TestAMarkThatStays(t *testing.T) {
	v := newVolume(t)
	other := v.beside()
	v.storms(2)
	_, noisy := v.watch()
	_, quiet := other.watch()
	// Not each pause has too many: in the first, most events are counted. Linux 6.12 tells twice as many as can be read.
	for pauses := 0; quiet.end() == nil && pauses < 4*maxLate; pauses++ {
		waitFor(t, func() bool {
			n, err := unix.IoctlGetInt(v.group.fd, unix.TIOCINQ)
			return err != nil || n > 2*(v.group.most+busy)*metadataSize
		})
		_, _ = v.group.read(true, nil) // a pause has passed
	}
	if !errors.Is(noisy.end(), ErrNoisy) || !errors.Is(quiet.end(), errTooMany) {
		t.Errorf("the watches were ended: %v, %v", noisy.end(), quiet.end())
	}
}

// TestADrainIsBounded: a rewrite doesn't wait for what other processes have queued.
func TestADrainIsBounded(t *testing.T) {
	v := newVolume(t)
	v.dir("1", "key")
	_, r := v.watch()
	v.cat("1/key")
	v.group.reading <- struct{}{} // somebody reads
	reads := v.group.reads.Load()
	expect.Is(t, "while another reader reads", v.group.Drain(10*time.Millisecond), errSlow)
	<-v.group.reading
	late := make(chan time.Time)
	close(late)
	if n, err := v.group.read(false, late); !errors.Is(err, errSlow) || n > 0 {
		t.Errorf("%d events were read in no time: %v", n, err)
	}
	expect.Equal(t, "reads that count, and that have left something", v.group.reads.Load()-reads, 0)
	v.want(r, "1/key")
	if v.group.reads.Load() == reads {
		t.Error("a read that has left nothing does not count")
	}
}

// TestADrainWaitsForReports: an open that another reader has taken off the queue is reported before Drain returns. Otherwise it would count
// for the new content after a rewrite.
func TestADrainWaitsForReports(t *testing.T) {
	v := newVolume(t)
	taken, report, reported := v.reportsLate()
	v.cat("1/key")
	first, second := make(chan error), make(chan error)
	go func() { first <- v.group.Drain(drainTime) }()
	<-taken
	go func() {
		err := v.group.Drain(drainTime)
		if len(*reported) == 0 {
			err = errors.Join(err, errors.New("it returned before the open was reported"))
		}
		second <- err
	}()
	select {
	case err := <-second:
		t.Errorf("the second reader did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
		close(report)
		v.must(<-second)
	}
	v.must(<-first)
}
