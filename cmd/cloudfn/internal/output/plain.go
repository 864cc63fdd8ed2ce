package output

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// sorted sorts things by the column that the user wants, numbers by their size.
func sorted[T any](p *Printer, items []api.Item[T], t Table[T]) ([]api.Item[T], error) {
	if p.used.sort = true; p.Sort == "" {
		return items, nil
	}
	title, order, _ := strings.Cut(p.Sort, ":")
	all := columns(t.Columns)
	at := slices.IndexFunc(all, func(c column) bool { return strings.EqualFold(c.title, title) })
	if at < 0 || order != "" && order != "asc" && order != "desc" {
		var titles []string
		for _, c := range all {
			titles = append(titles, strings.ToLower(c.title))
		}
		return nil, exit.Usagef("--sort has %q: it must be a column, or COLUMN:desc; the columns are %s",
			p.Sort, strings.Join(titles, ", "))
	}
	text := func(i api.Item[T]) string { return strings.ToLower(t.Text(all[at].path, i.Value)) }
	compare := func(a, b api.Item[T]) int { return strings.Compare(text(a), text(b)) }
	number := func(i api.Item[T]) float64 { n, _ := strconv.ParseFloat(text(i), 64); return n } // nothing is 0
	if !slices.ContainsFunc(items, func(i api.Item[T]) bool {
		_, err := strconv.ParseFloat(text(i), 64)
		return err != nil && text(i) != ""
	}) {
		compare = func(a, b api.Item[T]) int { return cmp.Compare(number(a), number(b)) }
	}
	items = slices.Clone(items)
	slices.SortStableFunc(items, func(a, b api.Item[T]) int {
		if order == "desc" {
			a, b = b, a
		}
		return compare(a, b)
	})
	return items, nil
}

// plain prints rows for programs: as CSV (RFC 4180), or as values with a space between them.
func (p *Printer) plain(head []string, rows [][]string) error {
	var text bytes.Buffer
	if p.Format == "value" {
		for _, row := range rows {
			fmt.Fprintln(&text, Clean(strings.Join(row, " ")))
		}
		_, err := text.WriteTo(p.Out)
		return err
	}
	w := csv.NewWriter(&text)
	p.used.noHeaders = true
	if !p.NoHeaders {
		rows = slices.Concat([][]string{head}, rows)
	}
	for n, row := range rows {
		for i, cell := range row {
			if row[i] = domain.CSVCell(Clean(cell)); n == 0 && !p.NoHeaders {
				row[i] = strings.ToLower(cell)
			}
		}
	}
	if err := w.WriteAll(rows); err != nil {
		return err
	}
	_, err := text.WriteTo(p.Out)
	return err
}

// plainOne prints the columns of one thing: values one below another, as openstackclient does, or a row of CSV.
func (p *Printer) plainOne(all []column, text func(column) string) error {
	var head, row []string
	for _, c := range all {
		head, row = append(head, c.title), append(row, text(c))
	}
	if p.Format == "csv" {
		return p.plain(head, [][]string{row})
	}
	rows := make([][]string, len(row))
	for n, value := range row {
		rows[n] = []string{value}
	}
	return p.plain(nil, rows)
}
