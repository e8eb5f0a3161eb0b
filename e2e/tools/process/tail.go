package process

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// tailBytes bounds what Tail reads: a log at a high verbosity can be large.
const tailBytes = 64 << 10

// Tail returns the last n lines of a file, or the reason why it cannot.
func Tail(path string, n int) string {
	data, err := lastBytes(path, tailBytes)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	lines := bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n"))
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return string(bytes.Join(lines, []byte("\n")))
}

func lastBytes(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(0, end-n), min(n, end)))
}
