package receipts

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// errEvent says that the kernel sent an event in an unexpected format.
var errEvent = errors.New("malformed fanotify event")

// An event is a struct fanotify_event_metadata followed by records, struct fanotify_event_info_fid. Each record has a struct file_handle.
const (
	metadataSize = unix.FAN_EVENT_METADATA_LEN
	version      = 3         // FANOTIFY_METADATA_VERSION
	headerSize   = 4         // of a record: type, padding, length
	fsSize       = 8         // the file system's ID
	fixedSize    = 8 + 4 + 4 // the ID, and the handle's length and type
)

// event is one event. Its slices point into the read buffer.
type event struct {
	mask uint64
	pid  int32
	// fs identifies the file system, and file the file in it. Both are empty if the event names none.
	fs, file []byte
}

// lost reports whether the event says that others were lost, or is the open of an unnamed file.
func (e event) lost() bool {
	return e.mask&unix.FAN_Q_OVERFLOW != 0 || e.mask&unix.FAN_OPEN != 0 && len(e.file) == 0
}

// next returns the first event of a buffer, and the rest of the buffer.
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
		if records[0] == unix.FAN_EVENT_INFO_TYPE_FID {
			if e.fs, e.file, err = split(records[headerSize:n]); err != nil {
				return e, nil, err
			}
		}
		records = records[n:]
	}
	return e, buf[size:], nil
}

// split splits a record into the file system and the file. Both are empty if the kernel had no memory for the handle.
func split(record []byte) (fs, file []byte, err error) {
	if len(record) < fixedSize {
		return nil, nil, errEvent
	}
	n := uint64(binary.NativeEndian.Uint32(record[fsSize:]))
	if n == 0 {
		return nil, nil, nil
	}
	if n > uint64(len(record)-fixedSize) {
		return nil, nil, errEvent
	}
	return record[:fsSize], record[fsSize+4 : fixedSize+n], nil // the file includes the handle's type: without it, it would name another file
}
