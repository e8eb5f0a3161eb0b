package publisher

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// recordVersion is the format of a record; a record of another one is set aside.
const recordVersion = 1

// record is what a restarted plugin must know of a volume that is still mounted. It
// holds no value of an object, no digest of one and no token. It needs no fsync: the
// mount that it tells of does not survive what would lose it.
type record struct {
	Version    int               `json:"version"`
	VolumeID   string            `json:"volumeID"`
	Target     string            `json:"target"`
	ReadOnly   bool              `json:"readOnly"`
	FSGroup    *int64            `json:"fsGroup,omitempty"`
	Pod        volume.Pod        `json:"pod"`
	Attributes map[string]string `json:"attributes"`
	// Spec keeps the defaults that the volume was published with. What the pod's own
	// spec adds to it is read again: it may hold passwords.
	Spec *volume.Spec `json:"spec"`
	// Size is what was counted for the volume, in bytes.
	Size int64 `json:"size"`
	// Skipped is what the pod's author was told of variables that the env files lack: names.
	Skipped string `json:"skipped,omitempty"`
	// Shown is written after the files, so they are never older than it says.
	Shown []shownObject `json:"shown"`
}

// shownObject is the state of one object that the files show.
type shownObject struct {
	volume.Ref
	volume.Version
}

// recordOf returns the record of a volume whose files take size bytes; the caller
// holds the lock of its contents.
func recordOf(v *published, size int64) *record {
	r := &record{
		Version:    recordVersion,
		VolumeID:   v.request.VolumeID,
		Target:     v.request.Target,
		ReadOnly:   v.request.ReadOnly,
		FSGroup:    v.request.FSGroup,
		Pod:        v.request.Pod,
		Attributes: v.request.Attributes,
		Spec:       v.spec,
		Size:       size,
		Skipped:    v.contents.told,
	}
	for _, ref := range v.refs {
		r.Shown = append(r.Shown, shownObject{Ref: ref, Version: v.contents.shown[ref]})
	}
	return r
}

// published returns the volume that the record tells of, to be written by w.
func (r *record) published(w treeWriter) *published {
	v := newPublished(Request{
		VolumeID:   r.VolumeID,
		Target:     r.Target,
		Pod:        r.Pod,
		Attributes: r.Attributes,
		ReadOnly:   r.ReadOnly,
		FSGroup:    r.FSGroup,
	}, r.Spec, w)
	v.contents.told = r.Skipped
	if !r.Spec.HasPodEnv() {
		v.contents.spec = r.Spec
	}
	for _, s := range r.Shown {
		v.contents.shown[s.Ref] = s.Version
		v.refs = append(v.refs, s.Ref)
	}
	return v
}

// validate checks a record that was read from disk, where anybody with root may
// have written it.
func (r *record) validate(name, kubeletDir string) error {
	switch {
	case r.Version != recordVersion:
		return fmt.Errorf("version: Unsupported value: %d", r.Version)
	case r.VolumeID+recordSuffix != name:
		return fmt.Errorf("volumeID: Invalid value: %q: must be the file's name", r.VolumeID)
	case r.Pod.UID == "" || r.Pod.Namespace == "" || r.Pod.Name == "":
		return errors.New("pod: Required value: namespace, name and uid")
	case r.Spec == nil || len(r.Spec.Sources) == 0:
		return errors.New("spec.sources: Required value")
	case r.Size < 0:
		return fmt.Errorf("size: Invalid value: %d: must not be negative", r.Size)
	}
	return checkTarget(kubeletDir, r.Pod, r.Target)
}

// checkTarget says whether a target path lies where the kubelet puts the volumes of
// this pod and no other.
func checkTarget(kubeletDir string, pod volume.Pod, target string) error {
	below := filepath.Join(kubeletDir, "pods", string(pod.UID), "volumes") + "/"
	if filepath.Clean(target) != target || !strings.HasPrefix(target, below) {
		return fmt.Errorf("Invalid value: %q: must be a clean path below %s", target, below)
	}
	return nil
}

const (
	recordSuffix  = ".json"
	tempSuffix    = ".tmp"
	damagedSuffix = ".damaged"

	// maxRecordSize is far beyond any record, in bytes: a volume's attributes have 64 KiB
	// at most, and the rest follows from them.
	maxRecordSize = 16 << 20
)

// recordStore keeps a file per volume in the state directory. Calls for one volume
// are serialised by the lock of its contents; calls for several may run at once.
type recordStore struct {
	dir *os.Root
}

func openRecords(stateDir string) (*recordStore, error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	dir, err := os.OpenRoot(stateDir)
	if err != nil {
		return nil, fmt.Errorf("open the state directory: %w", err)
	}
	return &recordStore{dir: dir}, nil
}

func (s *recordStore) close() error { return s.dir.Close() }

// save writes a record whole or not at all.
func (s *recordStore) save(r *record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the record of volume %s: %w", r.VolumeID, err)
	}
	name := r.VolumeID + recordSuffix
	err = s.dir.WriteFile(name+tempSuffix, text, 0o600)
	if err == nil {
		err = s.dir.Rename(name+tempSuffix, name)
	}
	if err != nil {
		return fmt.Errorf("write the record of volume %s: %w", r.VolumeID, errors.Join(err, s.removeTemp(name)))
	}
	return nil
}

// remove deletes what the directory holds of a volume; nothing there is success. What
// a start has set aside may be a directory, with what somebody put into it.
func (s *recordStore) remove(volumeID string) error {
	name := volumeID + recordSuffix
	err := errors.Join(s.dir.RemoveAll(name), s.removeTemp(name), s.dir.RemoveAll(name+damagedSuffix))
	if err != nil {
		return fmt.Errorf("remove the record of volume %s: %w", volumeID, err)
	}
	return nil
}

func (s *recordStore) removeTemp(name string) error {
	if err := s.dir.Remove(name + tempSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// names returns the names of all records, and of what killed saves left.
func (s *recordStore) names() (records, leftovers []string, err error) {
	entries, err := fs.ReadDir(s.dir.FS(), ".")
	if err != nil {
		return nil, nil, fmt.Errorf("list the state directory: %w", err)
	}
	for _, entry := range entries {
		switch name := entry.Name(); {
		case strings.HasSuffix(name, recordSuffix+tempSuffix):
			leftovers = append(leftovers, name)
		case strings.HasSuffix(name, recordSuffix):
			records = append(records, name)
		}
	}
	return records, leftovers, nil
}

// read returns the content of a file. Anybody with root may have put something else in
// its place, such as a named pipe, which must not hold up a start.
func (s *recordStore) read(name string) ([]byte, error) {
	file, err := s.dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case info.Size() > maxRecordSize:
		return nil, fmt.Errorf("too long: %d bytes", info.Size())
	}
	return io.ReadAll(io.LimitReader(file, maxRecordSize))
}

// load reads and validates one record.
func (s *recordStore) load(name, kubeletDir string) (*record, error) {
	text, err := s.read(name)
	if err != nil {
		return nil, fmt.Errorf("read record %s: %w", name, err)
	}
	r := &record{}
	// A field that this version does not know asks for something that it can't do.
	decode := json.NewDecoder(bytes.NewReader(text))
	decode.DisallowUnknownFields()
	if err := decode.Decode(r); err != nil {
		return nil, fmt.Errorf("decode record %s: %w", name, err)
	}
	if err := r.validate(name, kubeletDir); err != nil {
		return nil, fmt.Errorf("record %s: %w", name, err)
	}
	return r, nil
}

// setAside keeps a record that can't be used where a person can look at it, in place of
// an earlier one.
func (s *recordStore) setAside(name string) error {
	return errors.Join(s.dir.RemoveAll(name+damagedSuffix), s.dir.Rename(name, name+damagedSuffix))
}
