package publisher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	recordSuffix  = ".json"
	tempSuffix    = ".tmp"
	damagedSuffix = ".damaged"
	// maxRecord bounds what is read of a record: its attributes, which may have 64 KiB,
	// are in it twice, once as a spec.
	maxRecord = 4 << 20
	// lockInterval is how often a process looks whether the one before has ended.
	lockInterval = 50 * time.Millisecond
)

// errDamaged reports a record that can't be used, however often it is read.
var errDamaged = errors.New("damaged")

// recordStore keeps a file per volume in the state directory. Calls for one volume
// are serialised by the lock of its contents; calls for several may run at once.
//
// mu guards dir and lock, which are replaced when somebody has removed the directory, and
// epoch, which counts that.
type recordStore struct {
	path string

	mu sync.RWMutex
	// dir is the directory, lock another handle on it, for its lock.
	dir  *os.Root
	lock *os.File
	// epoch tells the records of one directory from those of the next.
	epoch int
}

func openRecords(stateDir string) (*recordStore, error) {
	s := &recordStore{path: stateDir}
	if err := s.open(); err != nil {
		return nil, err
	}
	return s, nil
}

// open makes the directory if it does not exist, and opens it. The caller holds mu, or
// the store is new.
func (s *recordStore) open() error {
	if err := os.MkdirAll(s.path, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	dir, err := os.OpenRoot(s.path)
	if err != nil {
		return fmt.Errorf("open the state directory: %w", err)
	}
	lock, err := dir.Open(".")
	if err != nil {
		return errors.Join(fmt.Errorf("open the state directory: %w", err), dir.Close())
	}
	s.dir, s.lock = dir, lock
	return nil
}

func (s *recordStore) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.lock.Close()
	if errors.Is(err, fs.ErrClosed) {
		err = nil // closing twice is no error
	}
	return errors.Join(err, s.dir.Close())
}

// acquire waits until no other process has the directory, as one that is just stopping,
// and keeps it until close or the end of this process: two that write to one volume would
// remove each other's files.
func (s *recordStore) acquire(ctx context.Context) error {
	for try := 1; ; try++ {
		err := s.tryLock()
		if cannotLock(err) {
			klog.FromContext(ctx).Error(err, "Nothing keeps a second process of this plugin from the same volumes")
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if try == 1 {
			klog.FromContext(ctx).Info("Another process has the state directory: waiting for its end", "dir", s.path)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the process that has the state directory %s: %w", s.path, ctx.Err())
		case <-time.After(lockInterval):
		}
	}
}

// tryLock locks the directory, or fails with EWOULDBLOCK if another process has.
func (s *recordStore) tryLock() error {
	lock, err := s.lock.SyscallConn()
	if err == nil {
		controlErr := lock.Control(func(fd uintptr) {
			for err = unix.EINTR; errors.Is(err, unix.EINTR); {
				err = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB)
			}
		})
		err = errors.Join(err, controlErr)
	}
	if err != nil {
		return fmt.Errorf("lock the state directory %s: %w", s.path, err)
	}
	return nil
}

// cannotLock says whether an error of tryLock is one of a file system that knows no locks
// of directories, as NFS.
func cannotLock(err error) bool {
	return errors.Is(err, unix.EBADF) || errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.EOPNOTSUPP)
}

// in calls do with the directory.
func (s *recordStore) in(do func(dir *os.Root) error) error {
	_, err := s.inEpoch(do)
	return err
}

// inEpoch is in, and returns which directory that was.
func (s *recordStore) inEpoch(do func(dir *os.Root) error) (epoch int, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.epoch, do(s.dir)
}

// present returns which directory there is now.
func (s *recordStore) present() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.epoch
}

// save writes a record whole or not at all, and returns which directory has it.
func (s *recordStore) save(r *record) (epoch int, err error) {
	text, err := json.Marshal(r)
	if err != nil {
		return 0, fmt.Errorf("encode the record of volume %s: %w", r.VolumeID, err)
	}
	text = padded(text)
	write := func(dir *os.Root) error {
		name := r.VolumeID + recordSuffix
		if overwrite(dir, name, text) {
			return nil
		}
		err := writeNew(dir, name+tempSuffix, text)
		if err == nil {
			err = dir.Rename(name+tempSuffix, name)
		}
		if err != nil {
			return errors.Join(err, removeFile(dir, name+tempSuffix))
		}
		return nil
	}
	epoch, err = s.inEpoch(write)
	if errors.Is(err, fs.ErrNotExist) { // the directory itself
		if err = s.reopen(epoch); err == nil {
			epoch, err = s.inEpoch(write)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("write the record of volume %s: %w", r.VolumeID, err)
	}
	return epoch, nil
}

// reopen makes and opens the directory again that somebody has removed in an epoch, unless
// another call has.
func (s *recordStore) reopen(epoch int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != epoch {
		return nil
	}
	old := recordStore{dir: s.dir, lock: s.lock}
	if err := s.open(); err != nil {
		return err
	}
	if err := s.tryLock(); err != nil && !cannotLock(err) {
		err = errors.Join(err, s.lock.Close(), s.dir.Close())
		s.dir, s.lock = old.dir, old.lock
		return err
	}
	s.epoch++
	return old.close()
}

// remove deletes what the directory holds of a volume; nothing there is success. What
// a start has set aside may be a directory, with what somebody put into it.
func (s *recordStore) remove(volumeID string) error {
	name := volumeID + recordSuffix
	err := s.in(func(dir *os.Root) error {
		return errors.Join(removeTree(dir, name), removeFile(dir, name+tempSuffix), removeTree(dir, name+damagedSuffix))
	})
	if err != nil {
		return fmt.Errorf("remove the record of volume %s: %w", volumeID, err)
	}
	return nil
}

// names returns the names of all records, and removes what a killed save left; what can't
// be removed stays, for the next start.
func (s *recordStore) names(ctx context.Context) (names []string, err error) {
	err = s.in(func(dir *os.Root) error {
		entries, err := fs.ReadDir(dir.FS(), ".")
		if err != nil {
			return fmt.Errorf("list the state directory: %w", err)
		}
		for _, entry := range entries {
			switch name := entry.Name(); {
			case strings.HasSuffix(name, recordSuffix+tempSuffix):
				if err := removeTree(dir, name); err != nil {
					klog.FromContext(ctx).Error(err, "Half-written record can't be removed", "record", name)
				}
			case strings.HasSuffix(name, recordSuffix):
				names = append(names, name)
			}
		}
		return nil
	})
	return names, err
}

// load reads and validates one record. The error wraps errDamaged if another try is of no
// use.
func (s *recordStore) load(name, kubeletDir string) (*record, error) {
	var text []byte
	err := s.in(func(dir *os.Root) (err error) {
		text, err = readRegular(dir, name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read record %s: %w", name, err)
	}
	return decodeRecord(name, text, kubeletDir)
}

// setAside keeps a record that can't be used where a person can look at it, in place of
// an earlier one.
func (s *recordStore) setAside(name string) error {
	return s.in(func(dir *os.Root) error {
		return errors.Join(removeTree(dir, name+damagedSuffix), dir.Rename(name, name+damagedSuffix))
	})
}
