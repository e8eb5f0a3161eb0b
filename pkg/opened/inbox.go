package opened

import (
	"sync"
	"time"
)

// inbox keeps what the Watcher reports about a volume until Save takes it. It is safe for concurrent use.
type inbox struct {
	// delay is how long opens wait at most until they are taken. Both fields are constant.
	delay time.Duration
	wake  func(at time.Time)

	// mu guards the fields below. at is when the news must be taken; zero without any.
	mu   sync.Mutex
	news news
	at   time.Time
}

// news has the times at which files were opened, by file ID. lost means that other files may have been opened. ended says why the
// watch has ended, or is nil.
type news struct {
	opened map[string]time.Time
	lost   bool
	ended  error
}

// opened notes that files were opened. It does not block.
func (b *inbox) opened(ids []string) {
	b.mu.Lock()
	now := time.Now()
	if b.news.opened == nil {
		b.news.opened = map[string]time.Time{}
	}
	for _, id := range ids {
		if _, ok := b.news.opened[id]; !ok {
			b.news.opened[id] = now
		}
	}
	at := b.due(now.Add(b.delay))
	b.mu.Unlock()
	b.wake(at)
}

// lost notes that opens may have been missed. ended says why the watch has ended, or is nil. It does not block.
func (b *inbox) lost(ended error) {
	b.mu.Lock()
	b.news.lost = true
	if ended != nil {
		b.news.ended = ended
	}
	at := b.due(time.Now())
	b.mu.Unlock()
	b.wake(at)
}

// due notes when the news must be taken. The caller holds mu.
func (b *inbox) due(at time.Time) time.Time {
	b.at = earlier(b.at, at)
	return b.at
}

func (b *inbox) dueAt() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at
}

// forget drops the opens of a file. err says why its ID is not known, or is nil; opens may then have been missed.
func (b *inbox) forget(id string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.news.opened, id)
	if err != nil {
		b.news.lost = true
		b.due(time.Now())
	}
}

// take returns the news and empties the inbox.
func (b *inbox) take() (taken news) {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken, b.news, b.at = b.news, news{}, time.Time{}
	return taken
}
