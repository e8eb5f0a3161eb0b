package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// patrolInterval is the time between two reads of some volumes; patrolSize is how many.
	patrolInterval = 10 * time.Millisecond
	patrolSize     = 50
)

// patrol reads all of some volumes, over and over, as containers would: at each moment
// there has to be a state, and none older than the one before. It leaves the cores to what
// is measured, most of the time.
//
// Its one goroutine ends with close, or with the first thing that it finds wrong.
type patrol struct {
	files       []string
	seen        []int
	reads       int
	stop, ended chan struct{}
	// err may be read once ended is closed, as reads may.
	err error
}

// newPatrol reads volumes whose objects are in numbered states.
func (n *node) newPatrol(volumes []*harness.Volume) *patrol {
	p := &patrol{seen: make([]int, len(volumes)), stop: make(chan struct{}), ended: make(chan struct{})}
	for _, v := range volumes {
		p.files = append(p.files, n.valueFile(v))
	}
	go p.run()
	return p
}

func (p *patrol) run() {
	defer close(p.ended)
	ticker := time.NewTicker(patrolInterval)
	defer ticker.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-ticker.C:
		}
		for range patrolSize {
			if p.err = p.read(p.reads % len(p.files)); p.err != nil {
				return
			}
			p.reads++
		}
	}
}

func (p *patrol) read(i int) error {
	content, err := os.ReadFile(p.files[i])
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(string(content))
	if err != nil {
		return fmt.Errorf("volume %d: %w", i, err)
	}
	if number < p.seen[i] {
		return fmt.Errorf("volume %d shows state %d after %d", i, number, p.seen[i])
	}
	p.seen[i] = number
	return nil
}

// close ends the goroutine and returns what it found wrong, or that it has not even read
// every volume.
func (p *patrol) close() error {
	close(p.stop)
	<-p.ended
	if p.err != nil {
		return fmt.Errorf("a reader saw: %w", p.err)
	}
	if p.reads < len(p.files) {
		return fmt.Errorf("%d reads of %d volumes", p.reads, len(p.files))
	}
	return nil
}
