package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// TraceHeap is what PluginOptions.Env needs for LiveHeap: the Go runtime says in the
// log what each collection found, and collects often, so that the last one is of now.
func TraceHeap() []string { return []string{"GODEBUG=gctrace=1", "GOGC=10"} }

// collection is one line of the runtime's: gc 7 @0.4s 2%: ..., 4->5->2 MB, ...; the
// third number is what was in use, in MiB, rounded down.
var collection = regexp.MustCompile(`(?m)^gc (\d+) @.* \d+->\d+->(\d+) MB, `)

// traced is how much of the end of the log has the last collection for certain.
const traced = 1 << 20

// LiveHeap returns how many garbage collections the running process has made, and what
// the last one found in use, in whole MiB, rounded down: two equal numbers stand for
// heaps that are less than 1 MiB apart. Before the first one it returns zeros. It needs
// TraceHeap.
func (p *Plugin) LiveHeap() (collections, mib int, err error) {
	log, err := os.Open(p.LogPath())
	if err != nil {
		return 0, 0, err
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return 0, 0, err
	}
	from := max(p.logged, info.Size()-traced)
	data, err := io.ReadAll(io.NewSectionReader(log, from, info.Size()-from))
	if err != nil {
		return 0, 0, err
	}
	all := collection.FindAllSubmatch(data, -1)
	if len(all) == 0 {
		return 0, 0, nil
	}
	last := all[len(all)-1]
	collections, countErr := strconv.Atoi(string(last[1]))
	mib, sizeErr := strconv.Atoi(string(last[2]))
	return collections, mib, errors.Join(countErr, sizeErr)
}

var createdBy = regexp.MustCompile(`^created by (\S+)`)

// Quit ends the process with SIGQUIT and counts the goroutines in the stack dump that
// the Go runtime then writes, by the function that started them.
func (p *Plugin) Quit(ctx context.Context) (goroutines map[string]int, err error) {
	logged, err := p.logSize()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := errors.Join(p.proc.Stop(ctx, syscall.SIGQUIT), p.disconnect()); err != nil {
		return nil, err
	}
	all, err := os.ReadFile(p.LogPath())
	if err != nil {
		return nil, err
	}
	count := make(map[string]int)
	for line := range strings.Lines(string(all[logged:])) {
		if m := createdBy.FindStringSubmatch(line); m != nil {
			count[m[1]]++
		}
	}
	if len(count) == 0 {
		return nil, fmt.Errorf("the plugin wrote no stack dump on SIGQUIT\n%s", p.LogTail())
	}
	return count, nil
}

// logSize returns how long the log is; one that isn't there yet is empty.
func (p *Plugin) logSize() (int64, error) {
	info, err := os.Stat(p.LogPath())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
