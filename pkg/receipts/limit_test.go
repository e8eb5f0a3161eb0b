package receipts

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestAGroupIsTriedAgain if the node has too many groups, and the error names the limit. A process without free descriptors gets the same
// error from the kernel, and takes no group from what runs beside it.
func TestAGroupIsTriedAgain(t *testing.T) {
	v := newVolume(t)
	dir := int(v.dir("1", "key").Fd())
	var limit unix.Rlimit
	v.must(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	setDescriptors := func(n uint64) {
		v.must(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: limit.Max}))
	}
	setDescriptors(0)
	defer setDescriptors(limit.Cur)
	synctest.Test(t, func(t *testing.T) {
		g := New(func() {})
		defer g.Close()
		_, err := g.Watch(dir, "", nil, nil)
		if !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "fs.fanotify.max_user_groups") {
			t.Errorf("got %v", err)
		}
		refused := func(after time.Duration, tried bool) {
			t.Helper()
			<-time.After(after)
			_, again := g.Watch(dir, "", nil, nil)
			if !errors.Is(again, unix.EMFILE) || (again != err) != tried { //nolint:errorlint // each try has an error of its own
				t.Errorf("after %s it is refused by %v, want a new try: %t", after, again, tried)
			}
			err = again
		}
		refused(retryMin-time.Second, false)
		refused(time.Second, true)
		refused(2*retryMin-time.Second, false)
		setDescriptors(limit.Cur)
		<-time.After(time.Second)
		if _, err := g.Watch(dir, "", func([]string) {}, nil); err != nil {
			t.Error(err)
		}
	})
}
