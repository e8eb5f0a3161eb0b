package receipts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errEvent says that what was read is not what the kernel's interface promises.
var errEvent = errors.New("malformed fanotify event")

// An event is a struct fanotify_event_metadata and then records, struct fanotify_event_info_fid, each with a struct
// file_handle and a name.
const (
	metadataSize = unix.FAN_EVENT_METADATA_LEN
	version      = 3     // FANOTIFY_METADATA_VERSION
	headerSize   = 4     // of a record: type, padding, length
	fixedSize    = 8 + 8 // the file system's id; the handle's length and type
)

// event is one event. It points into the buffer that it was read to.
type event struct {
	mask uint64
	pid  int32
	// dir is the directory's key, and name the file's in it; both are empty where the event tells none.
	dir, name []byte
}

func (e event) opensFile() bool { return e.mask&(unix.FAN_OPEN|unix.FAN_ONDIR) == unix.FAN_OPEN }

// lost says that the event stands for others, or for the open of a file that can't be told.
func (e event) lost() bool {
	return e.mask&unix.FAN_Q_OVERFLOW != 0 || e.opensFile() && len(e.name) == 0
}

// next takes the first event off a buffer.
func next(buf []byte) (e event, rest []byte, err error) {
	order := binary.NativeEndian
	if len(buf) < metadataSize {
		return e, nil, errEvent
	}
	size, start := uint64(order.Uint32(buf)), uint64(order.Uint16(buf[6:]))
	if buf[4] != version || start < metadataSize || size < start || size > uint64(len(buf)) {
		return e, nil, errEvent
	}
	e.mask, e.pid = order.Uint64(buf[8:]), int32(order.Uint32(buf[20:]))
	for records := buf[start:size]; len(records) > 0; {
		if len(records) < headerSize {
			return e, nil, errEvent
		}
		n := int(order.Uint16(records[2:]))
		if n < headerSize || n > len(records) {
			return e, nil, errEvent
		}
		if records[0] == unix.FAN_EVENT_INFO_TYPE_DFID_NAME {
			if e.dir, e.name, err = split(records[headerSize:n]); err != nil {
				return e, nil, err
			}
		}
		records = records[n:]
	}
	return e, buf[size:], nil
}

// split parts a record into the directory's key and the name, both empty if the kernel had no memory for the handle.
func split(record []byte) (dir, name []byte, err error) {
	if len(record) < fixedSize {
		return nil, nil, errEvent
	}
	n := uint64(binary.NativeEndian.Uint32(record[8:]))
	if n == 0 {
		return nil, nil, nil
	}
	if n > uint64(len(record)-fixedSize) {
		return nil, nil, errEvent
	}
	dir, name = record[:fixedSize+n], record[fixedSize+n:]
	name, _, ended := bytes.Cut(name, []byte{0})
	if !ended {
		return nil, nil, errEvent
	}
	return dir, name, nil
}

// key returns what names a directory in its events: the file system's id, and a handle that no later directory gets.
func key(dir int) (string, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil {
		return "", fmt.Errorf("statfs: %w", err)
	}
	handle, _, err := unix.NameToHandleAt(dir, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return "", fmt.Errorf("name_to_handle_at: %w", err)
	}
	var k []byte
	for _, n := range []int32{st.Fsid.Val[0], st.Fsid.Val[1], int32(handle.Size()), handle.Type()} {
		k = binary.NativeEndian.AppendUint32(k, uint32(n))
	}
	return string(append(k, handle.Bytes()...)), nil
}
