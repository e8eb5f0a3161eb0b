package receipts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errEvent says that what was read is not what the kernel's interface says.
var errEvent = errors.New("malformed event")

// The layout of an event: struct fanotify_event_metadata, and then records of struct fanotify_event_info_fid, each with a
// struct file_handle and a name.
const (
	metadataSize = unix.FAN_EVENT_METADATA_LEN
	version      = 3 // FANOTIFY_METADATA_VERSION
	headerSize   = 4 // of a record: type, padding, length
	fsidSize     = 8
	handleSize   = 8 // of a handle's length and type, before its bytes
)

// event is one event of the queue. It points into the buffer that it was read to.
type event struct {
	mask uint64
	pid  int32
	// dir is what key returns for the directory, and name the file's in it. Both are empty where the event has none.
	dir, name []byte
}

// lost says that the event stands for others, or for an open that can't be told of which file.
func (e event) lost() bool {
	return e.mask&unix.FAN_Q_OVERFLOW != 0 || e.mask&(unix.FAN_OPEN|unix.FAN_ONDIR) == unix.FAN_OPEN && len(e.name) == 0
}

// next takes the first event off a buffer. The rest is shorter than the buffer, unless there is an error.
func next(buf []byte) (e event, rest []byte, err error) {
	order := binary.NativeEndian
	if len(buf) < metadataSize {
		return e, nil, fmt.Errorf("%w: %d bytes", errEvent, len(buf))
	}
	size, from := uint64(order.Uint32(buf)), uint64(order.Uint16(buf[6:]))
	if buf[4] != version || from < metadataSize || size < from || size > uint64(len(buf)) {
		return e, nil, fmt.Errorf("%w: version %d, %d bytes from %d on, of %d", errEvent, buf[4], size, from, len(buf))
	}
	e.mask, e.pid = order.Uint64(buf[8:]), int32(order.Uint32(buf[20:]))
	for infos := buf[from:size]; len(infos) > 0; {
		if len(infos) < headerSize {
			return e, nil, fmt.Errorf("%w: a record of %d bytes", errEvent, len(infos))
		}
		n := int(order.Uint16(infos[2:]))
		if n < headerSize || n > len(infos) {
			return e, nil, fmt.Errorf("%w: a record of %d bytes, of %d", errEvent, n, len(infos))
		}
		if infos[0] == unix.FAN_EVENT_INFO_TYPE_DFID_NAME {
			if e.dir, e.name, err = entry(infos[headerSize:n]); err != nil {
				return e, nil, err
			}
		}
		infos = infos[n:]
	}
	return e, buf[size:], nil
}

// entry splits a record into the directory's key and the name. Of a directory that the kernel could not name, both are
// empty.
func entry(record []byte) (dir, name []byte, err error) {
	const fixed = fsidSize + handleSize
	if len(record) < fixed {
		return nil, nil, fmt.Errorf("%w: a handle of %d bytes", errEvent, len(record))
	}
	n := uint64(binary.NativeEndian.Uint32(record[fsidSize:]))
	if n > uint64(len(record)-fixed) {
		return nil, nil, fmt.Errorf("%w: a handle of %d bytes, of %d", errEvent, n, len(record)-fixed)
	}
	if n == 0 {
		return nil, nil, nil
	}
	name, _, ok := bytes.Cut(record[fixed+n:], []byte{0})
	if !ok {
		return nil, nil, fmt.Errorf("%w: a name without an end", errEvent)
	}
	return record[:fixed+n], name, nil
}
