package harness

import (
	"context"
	"errors"
	"fmt"
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

// LiveHeap returns how many garbage collections the running process has made, and what
// the last one found in use, in whole MiB, rounded down: two equal numbers stand for
// heaps that are less than 1 MiB apart. It needs TraceHeap.
func (p *Plugin) LiveHeap() (collections, mib int, err error) {
	data, err := os.ReadFile(p.LogPath())
	if err != nil {
		return 0, 0, err
	}
	last := collection.FindAllSubmatch(data, -1)
	if len(last) == 0 {
		return 0, 0, errors.New("the plugin's log tells of no garbage collection")
	}
	text := last[len(last)-1]
	collections, err = strconv.Atoi(string(text[1]))
	if err != nil {
		return 0, 0, err
	}
	mib, err = strconv.Atoi(string(text[2]))
	return collections, mib, err
}

var createdBy = regexp.MustCompile(`^created by (\S+)`)

// Quit ends the process with SIGQUIT and counts the goroutines in the stack dump that
// the Go runtime then writes, by the function that started them.
func (p *Plugin) Quit(ctx context.Context) (goroutines map[string]int, err error) {
	logged, err := os.Stat(p.LogPath())
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
	for line := range strings.Lines(string(all[logged.Size():])) {
		if m := createdBy.FindStringSubmatch(line); m != nil {
			count[m[1]]++
		}
	}
	if len(count) == 0 {
		return nil, fmt.Errorf("the plugin wrote no stack dump on SIGQUIT\n%s", p.LogTail())
	}
	return count, nil
}
