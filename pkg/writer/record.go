package writer

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// attributeNames are the names of the extended attributes; "" stands for none.
type attributeNames struct {
	// refs is on each file that names objects, record on each generation.
	refs, record string
}

func namesWith(prefix string) attributeNames {
	if prefix == "" {
		return attributeNames{}
	}
	return attributeNames{refs: prefix + refsName, record: prefix + "record"}
}

// MaxRecord bounds a record, in bytes. The kernel takes 64 KiB.
const MaxRecord = 60_000

// ReadRecord returns the record of the generation that dir shows, "" if there is none.
// prefix is that of Options. Whoever may write to the volume may have written the record.
func ReadRecord(dir *os.Root, prefix string) (string, error) {
	root, err := openRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	name, err := currentName(int(root.Fd()))
	if name == "" || err != nil {
		return "", err
	}
	fd, err := openDir(int(root.Fd()), name)
	if saysOfEntry(err) {
		return "", nil // there is no such directory: the next write repairs that
	}
	if err != nil {
		return "", fmt.Errorf("open generation %s: %w", name, err)
	}
	defer unix.Close(fd)
	return readRecord(fd, namesWith(prefix).record), nil
}

// readRecord returns the record of an open generation. One that can't be read, or is too
// long, is none.
func readRecord(fd int, name string) string {
	if name == "" {
		return ""
	}
	buf := make([]byte, MaxRecord)
	n, err := retry(func() (int, error) { return unix.Fgetxattr(fd, name, buf) })
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// setRecord has an open generation carry the next record.
func (u *update) setRecord(generation int) error {
	if u.next.record == "" {
		return nil
	}
	if err := u.fs.setAttribute(generation, u.names.record, u.next.record); err != nil {
		return fmt.Errorf("record what the generation shows: %w", err)
	}
	return nil
}

// renewRecord has the present generation carry the next record, if it has another one. The
// kernel swaps it whole.
func (u *update) renewRecord() error {
	if u.base.record == u.next.record {
		return nil
	}
	fd, err := openDir(u.root, u.base.generation)
	if err != nil {
		return fmt.Errorf("open generation %s: %w", u.base.generation, err)
	}
	defer unix.Close(fd)
	if err := u.fs.setAttribute(fd, u.names.record, u.next.record); err != nil {
		return fmt.Errorf("record what generation %s shows: %w", u.base.generation, err)
	}
	return nil
}
