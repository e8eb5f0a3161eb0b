package receipts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// message returns an event as the kernel writes it.
func message(mask uint64, pid int32, records ...[]byte) []byte {
	infos := bytes.Join(records, nil)
	b := binary.NativeEndian.AppendUint32(nil, uint32(metadataSize+len(infos)))
	b = append(b, version, 0)
	b = binary.NativeEndian.AppendUint16(b, metadataSize)
	b = binary.NativeEndian.AppendUint64(b, mask)
	b = binary.NativeEndian.AppendUint32(b, 0xffffffff) // FAN_NOFD
	b = binary.NativeEndian.AppendUint32(b, uint32(pid))
	return append(b, infos...)
}

// record returns a record of an event. The handle has the given length, and rest follows.
func record(kind byte, handle uint32, rest string) []byte {
	b := []byte{kind, 0}
	b = binary.NativeEndian.AppendUint16(b, uint16(headerSize+fixedSize+len(rest)))
	b = append(b, "fsidfsid"...)
	b = binary.NativeEndian.AppendUint32(b, handle)
	b = binary.NativeEndian.AppendUint32(b, 1)
	return append(b, rest...)
}

const fid = unix.FAN_EVENT_INFO_TYPE_FID

func TestNextTakesAnEvent(t *testing.T) {
	entry := record(fid, 12, "0123456789ab")
	for name, c := range map[string]struct {
		message []byte
		tells   bool
		lost    bool
	}{
		"open":             {message(unix.FAN_OPEN, 7, entry), true, false},
		"other records":    {message(unix.FAN_OPEN, 7, record(unix.FAN_EVENT_INFO_TYPE_DFID, 2, "xy"), entry, record(99, 0, "")), true, false},
		"an empty record":  {message(unix.FAN_OPEN, 7, entry, binary.NativeEndian.AppendUint16([]byte{99, 0}, headerSize)), true, false},
		"overflow":         {message(unix.FAN_Q_OVERFLOW, 7), false, true},
		"without a record": {message(unix.FAN_OPEN, 7), false, true},
		"without a handle": {message(unix.FAN_OPEN, 7, record(fid, 0, "")), false, true},
		"other event":      {message(unix.FAN_CLOSE_NOWRITE, 7), false, false},
	} {
		e, rest, err := next(append(c.message, "rest"...))
		if err != nil || string(rest) != "rest" || (len(e.file) > 0) != c.tells || e.pid != 7 || e.lost() != c.lost {
			t.Errorf("%s: got file %q, pid %d, lost %t, rest %q, %v", name, e.file, e.pid, e.lost(), rest, err)
		}
		if c.tells && (string(e.fs) != "fsidfsid" || !bytes.Equal(e.file, entry[headerSize+fixedSize-4:])) {
			t.Errorf("%s: got file system %q, file %q", name, e.fs, e.file)
		}
	}
}

// malformed returns data that no kernel sends.
func malformed() map[string][]byte {
	change := func(at int, to byte) []byte {
		b := message(unix.FAN_OPEN, 7, record(fid, 4, "0123"))
		b[at] = to
		return b
	}
	return map[string][]byte{
		"short":                       message(unix.FAN_OPEN, 7)[:metadataSize-1],
		"longer than it is":           change(0, 200),
		"shorter than fixed":          change(0, 8),
		"version":                     change(4, 2),
		"metadata too short":          change(6, 8),
		"metadata too long":           change(6, 200),
		"record of no size":           change(metadataSize+2, 0),
		"record too long":             change(metadataSize+2, 200),
		"record too short":            change(metadataSize+2, 8),
		"handle too long":             change(metadataSize+headerSize+8, 200),
		"handle too long by one byte": change(metadataSize+headerSize+8, 5),
		"half a record":               message(unix.FAN_OPEN, 7, []byte{fid, 0}),
	}
}

func TestNextRefuses(t *testing.T) {
	for name, b := range malformed() {
		if e, _, err := next(b); !errors.Is(err, errEvent) {
			t.Errorf("%s: got %v and %v, want %v", name, e, err, errEvent)
		}
	}
}

// FuzzEvents: any data is parsed to its end or refused, and nothing outside it is read.
func FuzzEvents(f *testing.F) {
	entry := record(fid, 12, "0123456789ab")
	f.Add(append(message(unix.FAN_OPEN, 7, entry), message(unix.FAN_Q_OVERFLOW, 0)...))
	for _, b := range malformed() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = bytes.Clone(b)[:len(b):len(b)]
		for rest := b; len(rest) > 0; {
			e, after, err := next(rest)
			if err != nil {
				return
			}
			if len(after) > len(rest)-metadataSize || !bytes.HasSuffix(rest, after) {
				t.Fatalf("%d bytes are left of %d", len(after), len(rest))
			}
			if taken := rest[:len(rest)-len(after)]; !bytes.Contains(taken, e.fs) || !bytes.Contains(taken, e.file) {
				t.Fatalf("%q and %q are not of the event %q", e.fs, e.file, taken)
			}
			if len(e.file) > 0 && (len(e.fs) != fsSize || len(e.file) <= 4) {
				t.Fatalf("file %q in %q", e.file, e.fs)
			}
			rest = after
		}
	})
}
