// Command query asks a Prometheus that has scraped some texts, and answers in JSON. It is for the
// tests of alerts and dashboards: Prometheus' own parser, store and engine work on what the plugin
// served. It reads a Request from stdin and writes an Answer per query to stdout.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// Request is what to ask.
type Request struct {
	Scrapes []Scrape `json:"scrapes"`
	Queries []string `json:"queries"`
	// Seconds is when to ask, since the first moment.
	Seconds float64 `json:"seconds"`
}

// Scrape is what a target served at a moment. Labels are those of the target.
type Scrape struct {
	Seconds float64           `json:"seconds"`
	Labels  map[string]string `json:"labels"`
	Text    string            `json:"text"`
}

// Answer is the result of one query: an instant vector, or why there is none.
type Answer struct {
	Error   string   `json:"error,omitempty"`
	Samples []Sample `json:"samples,omitempty"`
}

// Sample is a series and its value, which may be NaN, as a text.
type Sample struct {
	Labels map[string]string `json:"labels"`
	Value  string            `json:"value"`
}

func main() {
	if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "query:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	var request Request
	if err := json.NewDecoder(in).Decode(&request); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	dir, err := os.MkdirTemp("", "refvol-query-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := tsdb.Open(dir, nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	start := time.Now().Add(-time.Hour)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	for _, s := range request.Scrapes {
		if err := store(ctx, db, s, at(s.Seconds)); err != nil {
			return fmt.Errorf("scrape at %v s: %w", s.Seconds, err)
		}
	}
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: parser.NewParser(parser.Options{}),
	})
	defer func() { err = errors.Join(err, engine.Close()) }()
	answers := make([]Answer, 0, len(request.Queries))
	for _, q := range request.Queries {
		answers = append(answers, ask(ctx, engine, db, q, at(request.Seconds)))
	}
	return json.NewEncoder(out).Encode(answers)
}

// store does what a scrape does, and adds the metric up.
func store(ctx context.Context, db storage.Appendable, s Scrape, at time.Time) error {
	appender := db.Appender(ctx)
	add := func(series labels.Labels, value float64) error {
		builder := labels.NewBuilder(series)
		for name, value := range s.Labels {
			builder.Set(name, value)
		}
		_, err := appender.Append(0, builder.Labels(), at.UnixMilli(), value)
		return err
	}
	p := textparse.NewPromParser([]byte(s.Text), labels.NewSymbolTable(), false)
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return errors.Join(err, appender.Rollback())
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var series labels.Labels
		p.Labels(&series)
		_, _, value := p.Series()
		if err := add(series, value); err != nil {
			return errors.Join(err, appender.Rollback())
		}
	}
	if err := add(labels.FromStrings("__name__", "up"), 1); err != nil {
		return errors.Join(err, appender.Rollback())
	}
	return appender.Commit()
}

func ask(ctx context.Context, engine *promql.Engine, db storage.Queryable, text string, at time.Time) Answer {
	query, err := engine.NewInstantQuery(ctx, db, nil, text, at)
	if err != nil {
		return Answer{Error: err.Error()}
	}
	defer query.Close()
	result := query.Exec(ctx)
	if result.Err != nil {
		return Answer{Error: result.Err.Error()}
	}
	vector, err := result.Vector()
	if err != nil {
		return Answer{Error: err.Error()}
	}
	answer := Answer{}
	for _, sample := range vector {
		answer.Samples = append(answer.Samples, Sample{Labels: sample.Metric.Map(), Value: fmt.Sprint(sample.F)})
	}
	return answer
}
