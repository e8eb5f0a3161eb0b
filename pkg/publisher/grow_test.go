package publisher

import (
	"math"
	"testing"
)

// limits returns how much a volume's file system may hold.
func (m *fakeMounts) limits(target string) (size, inodes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.attached[target].size, m.attached[target].inodes
}

func (e *env) wantLimits(r Request, maxVolumeSize int64) {
	e.Helper()
	want := limitsFor(maxVolumeSize)
	if size, inodes := e.mounts.limits(r.Target); size != want.mountBytes || inodes != want.mountInodes {
		e.Errorf("the file system holds %d bytes and %d inodes, want %d and %d", size, inodes, want.mountBytes, want.mountInodes)
	}
}

// What a volume may hold follows the limit upwards, with the first write after a restart, and a
// lower limit takes nothing away.
func TestALimitThatWasRaisedReachesMountedVolumes(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.objects.put(configMap("app"), "a", pages(300))
		e.settle()
		e.wantProblem(r, "--max-volume-size")
		e.wantLimits(r, mebibyte)

		e.opts.MaxVolumeSize = 2 * mebibyte
		e.restart()
		e.settle()
		e.wantFiles(r, "a", pages(300))
		e.wantProblem(r, "")
		e.wantLimits(r, 2*mebibyte)

		e.opts.MaxVolumeSize = mebibyte
		e.restart()
		e.settle()
		e.objects.put(configMap("app"), "a", pages(301))
		e.settle()
		e.wantFiles(r, "a", pages(300))
		e.wantProblem(r, "--max-volume-size")
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "2")
		e.wantLimits(r, 2*mebibyte)
	})
}

// A file system that can't grow takes what fits, and that it can't is logged once.
func TestAFileSystemThatCannotGrowIsUpdated(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r, other := e.request("v1"), e.request("v2")
		e.publish(r)
		e.publish(other)
		e.opts.MaxVolumeSize = 2 * mebibyte
		e.mounts.failAt("Grow", errFault)
		e.restart()
		e.settle()
		for _, value := range []string{"2", "3"} {
			e.objects.put(configMap("app"), "a", value)
			after(2 * keepTime)
			e.settle()
			for _, r := range []Request{r, other} {
				e.wantFiles(r, "a", value)
				e.wantProblem(r, "")
			}
		}
		if n := e.mounts.count("Grow"); n < 6 {
			t.Errorf("it was tried %d times only", n)
		}
		if lines := e.logs.with("Can't enlarge", errFault.Error(), "volumeID="); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
		e.wantEvents()
	})
}

// A handle that was kept is as large as it has to be: nobody asks.
func TestAKeptHandleIsNotMeasured(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		for _, value := range []string{"2", "3", "4"} {
			e.objects.put(configMap("app"), "a", value)
			after(2 * readTime)
			e.settle()
			e.wantFiles(r, "a", value)
		}
		if got, want := e.mounts.count("Grow"), e.mounts.count("Reopen"); got != want || got != 1 {
			t.Errorf("measured %d times, reopened %d times, want once each", got, want)
		}
	})
}

// No limit that the flag takes makes sizes that the kernel does not.
func TestTheLargestLimit(t *testing.T) {
	const bogoInode = 1024 // as which tmpfs counts an inode, in 64 bits
	l := limitsFor(math.MaxInt64)
	if l.mountBytes < 2*l.bytes || l.mountInodes < 2*l.inodes || l.mountInodes > math.MaxInt64/bogoInode {
		t.Errorf("%+v", l)
	}
}
