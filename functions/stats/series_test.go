package stats

import (
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// cases are the series of the golden files.
func cases() map[string]series {
	hostile := view(row(1, 2), missing())
	hostile.view.ProjectID = `</title><b a="1" b='2'>&amp;`
	hostile.hours[0].ByStatus = map[string]int{`<i>&"'`: 1}
	return map[string]series{
		"mixed":   view(mixed(24)...),
		"month":   view(mixed(720)...),
		"unknown": view(repeat(missing(), 24)...),
		"idle":    view(repeat(row(0, 0), 24)...),
		"hour":    view(row(3, 4)),
		"hostile": hostile,
	}
}

// view is a series of a project that begins at 2026-01-01 17:00Z; the hours need no time.
func view(hours ...domain.HourStat) series {
	first := time.Date(2026, 1, 1, 17, 0, 0, 0, time.UTC)
	for i := range hours {
		hours[i].Hour = first.Add(time.Duration(i) * time.Hour)
	}
	return series{view: domain.View{Scope: domain.ScopeProject, ProjectID: projectID}, hours: hours}
}

func row(running, total int) domain.HourStat {
	h := domain.HourStat{Running: &running, Total: &total, ByStatus: map[string]int{}, Source: domain.Sampled}
	if running > 0 {
		h.ByStatus["ACTIVE"] = running
	}
	if total > running {
		h.ByStatus["SHUTOFF"] = total - running
	}
	return h
}

func missing() domain.HourStat {
	return domain.HourStat{ByStatus: map[string]int{}, Source: domain.Missing}
}

func repeat(h domain.HourStat, n int) []domain.HourStat {
	hours := make([]domain.HourStat, n)
	for i := range hours {
		hours[i] = h
	}
	return hours
}

// mixed are hours of every kind, with single and long gaps, a stretch that was rebuilt, and one with a zero.
func mixed(n int) []domain.HourStat {
	hours := make([]domain.HourStat, n)
	for i := range hours {
		running := 2 + min(i%24, 24-i%24)/2 + i*8/n
		hours[i] = row(running, running+1+i/5%3)
		switch day := i % 240; {
		case i == n/4:
			hours[i] = row(0, 3)
		case i == n*5/6:
			hours[i].Uncertain = 2
		case day == 9 || day == 15 || day == 16 || day > 100 && day < 112:
			hours[i] = missing()
		case day > 9 && day < 14 || day > 112 && day < 140 || day == 60:
			hours[i].Source = domain.Rebuilt
		}
	}
	return hours
}
